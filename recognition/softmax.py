"""Softmax statistics of class blocks and shards, and how they merge. N rows, S parts."""
from collections import namedtuple

from common.mxnet_loader import mx

NOTHING = -1e30  # log-sum-exp and best logit of a part without classes; finite, so that no NaN can come of it


def log_sum_exp(parts):
    """parts (S, N) float32 log-sums of disjoint classes -> (N,) log-sum over all of them."""
    top = mx.nd.max(parts, axis=0, keepdims=True)                              # (1, N)
    return mx.nd.log(mx.nd.sum(mx.nd.exp(parts - top), axis=0)) + top.reshape((-1,))


def block_log_sum(logits, work, columns=None):
    """logits (N, K) -> (N,) log-sum-exp over the block. work (N, K) is overwritten.

    Read off one column: log_softmax is vectorised where exp, max and sum over an axis are not. columns (N,): which one,
    the first if None. Its logit must be of the size of the sum, or rounding takes the sum away.
    """
    if columns is not None:
        return mx.nd.pick(logits, columns, axis=1) - mx.nd.pick(mx.nd.log_softmax(logits, out=work), columns, axis=1)
    first = mx.nd.slice_axis(logits, axis=1, begin=0, end=1)
    log_probability = mx.nd.slice_axis(mx.nd.log_softmax(logits, out=work), axis=1, begin=0, end=1)
    return (first - log_probability).reshape((-1,))


def row_maximum(logits):
    """logits (N, K) -> (N,) largest of each row; argmax and pick, since max over an axis is slower."""
    return mx.nd.pick(logits, mx.nd.argmax(logits, axis=1), axis=1)


class Smoothing(namedtuple('Smoothing', 'own every')):
    """Label smoothing [arXiv:1512.00567, section 7]: what each row shall be, own of its label and every of each class.

    With a share e over C classes own = 1 - e, every = e / C; loss = log-sum-exp - own z_label - every sum_k z_k.
    """

    @classmethod
    def of(cls, share, num_classes):
        """None for a share of 0."""
        return cls(1.0 - share, share / num_classes) if share else None


class Statistics:
    """What a shard tells the others of each row: the four rows of `array` (4, N) float32.

    log_sum       log-sum-exp of the logits of its classes
    target_logit  logit of the label, with margin; 0 where the label is another shard's. With label smoothing own times
                  that, plus every times the sum of the logits of its classes: what is taken from log_sum in the loss
    target_plain  the same without margin
    best_other    largest logit among its classes other than the label (0 unless measured)

    measures: {name: (1,) array} of what else was measured, see ParallModule.train_step.
    """

    def __init__(self, array):
        self.array, self.measures = array, {}
        self.log_sum, self.target_logit, self.target_plain, self.best_other = (array[row] for row in range(4))

    @classmethod
    def of(cls, log_sum, target_logit, target_plain, best_other):
        return cls(mx.nd.stack(log_sum, target_logit, target_plain, best_other, axis=0))

    @classmethod
    def merge(cls, stacked):
        """stacked (S, 4, N), one entry per shard -> Statistics over all classes. No collectives."""
        log_sum, target_logit, target_plain, best = (stacked[:, row] for row in range(4))   # (S, N) each
        return cls.of(log_sum_exp(log_sum), mx.nd.sum(target_logit, axis=0),
                      mx.nd.sum(target_plain, axis=0), mx.nd.max(best, axis=0))

    @classmethod
    def joined(cls, parts):
        """Statistics of the rows of all parts of a step, with the measures of the last."""
        if len(parts) == 1:
            return parts[0]
        whole = cls(mx.nd.concat(*[part.array for part in parts], dim=1))
        whole.measures.update(parts[-1].measures)
        return whole

    def loss(self):
        """Mean cross entropy (1,)."""
        return mx.nd.mean(self.log_sum - self.target_logit)

    def accuracy(self):
        """Share (1,) of rows whose label has the largest logit, the margin left out."""
        return mx.nd.mean(self.target_plain >= self.best_other)

    def cosines(self, scale):
        """Mean cosine (1,) of the rows with their own center, and with the nearest other that takes part.

        scale: of the logits. Where no other takes part, its cosine counts as -1.
        """
        return mx.nd.mean(self.target_plain) / scale, mx.nd.mean(mx.nd.maximum(self.best_other, -scale)) / scale
