"""The classification layer: one shard of class centers on one device, in blocks.

N global batch, D embedding size, C_s classes of this shard, K classes of one block.
Nothing of size (C_s, D) exists besides centers and momentum: a block's gradient is applied and forgotten.
"""
from collections import namedtuple

import numpy as np

from common.mxnet_loader import mx
from recognition.product import Product
from recognition.sharding import block_ranges, locate
from recognition.softmax import NOTHING, Statistics, block_log_sum, log_sum_exp, row_maximum

INIT_SCALE = 0.01
INIT_CHUNK = 1024      # classes per random stream; a constant of the format, seeds depend on it
BIAS_LR_MULT = 2.0     # the field's habit for the bias of this layer; it has no weight decay
BLOCK_ELEMENTS = 1 << 22
MAX_BLOCK_CLASSES = 65536


def default_block_size(embedding_size):
    """Classes per block: 2^22 weights stay near the cache and keep the cost of the operator calls small."""
    return min(MAX_BLOCK_CLASSES, max(1024, BLOCK_ELEMENTS // embedding_size))


def initial_centers(seed, start, stop, embedding_size):
    """Normal(0, 0.01) centers of classes [start, stop), float32 (stop - start, D).

    A function of (seed, class) alone, so that the cut into shards and blocks does not matter.
    """
    first = start // INIT_CHUNK * INIT_CHUNK
    centers = np.empty((stop - start, embedding_size), np.float32)
    for chunk in range(first, stop, INIT_CHUNK):
        rng = np.random.Generator(np.random.PCG64([seed, chunk // INIT_CHUNK]))
        values = rng.standard_normal((INIT_CHUNK, embedding_size), np.float32)
        low, high = max(start, chunk), min(stop, chunk + INIT_CHUNK)
        np.multiply(values[low - chunk:high - chunk], INIT_SCALE, out=centers[low - start:high - start])
    return centers


class ClassBlock:
    """Centers of the neighbouring classes [start, stop), with their momentum, on one context.

    weight, momentum (K, D) float32; bias, bias_momentum (K,) float32 or None.
    """

    def __init__(self, start, stop, weight, momentum, bias=None, bias_momentum=None):
        self.start, self.stop = start, stop
        self.weight, self.momentum = weight, momentum
        self.bias, self.bias_momentum = bias, bias_momentum

    @classmethod
    def initial(cls, start, stop, embedding_size, context, seed, with_bias=False):
        def zeros(*shape):
            return mx.nd.zeros(shape, ctx=context)
        weight = mx.nd.array(initial_centers(seed, start, stop, embedding_size), ctx=context)
        bias = (zeros(stop - start), zeros(stop - start)) if with_bias else (None, None)
        return cls(start, stop, weight, zeros(*weight.shape), *bias)

    def arrays(self):
        """Name -> array of everything that a checkpoint holds."""
        named = {'centers': self.weight, 'momentum': self.momentum,
                 'bias': self.bias, 'bias_momentum': self.bias_momentum}
        return {name: array for name, array in named.items() if array is not None}

    def inverse_norm(self, work):
        """(1, K) inverse lengths of the centers; 0 for a zero center, whose cosine is 0 then.

        work (K, D) is overwritten.
        """
        ones = mx.nd.ones((1, self.weight.shape[1]), ctx=self.weight.context)
        mx.nd.square(self.weight, out=work)
        square = mx.nd.FullyConnected(work, ones, num_hidden=1, no_bias=True)      # row sums, (K, 1)
        return inverse_root(square).reshape((1, -1))

    def update(self, d_weight, d_bias, lr, momentum, wd):
        """SGD with momentum, in place: v <- momentum v - lr (gradient + wd w), w <- w + v."""
        mx.nd.sgd_mom_update(self.weight, d_weight, self.momentum, lr=lr, momentum=momentum, wd=wd,
                             out=self.weight)
        if self.bias is not None:
            mx.nd.sgd_mom_update(self.bias, d_bias, self.bias_momentum, lr=lr * BIAS_LR_MULT,
                                 momentum=momentum, wd=0.0, out=self.bias)


def inverse_root(square):
    """1 / sqrt(square), and 0 for 0: a zero vector has cosine 0 with all and gets no gradient."""
    positive = square > 0
    return positive * mx.nd.rsqrt(square + (1 - positive))


def set_entries(matrix, rows_columns, values):
    """matrix[rows, columns] = values, in place. rows_columns (2, n) int32, values (n,)."""
    mx.nd._internal._scatter_set_nd(matrix, values, rows_columns, shape=matrix.shape, out=matrix)


class Scratch:
    """Arrays that every block and step of a shard uses again; allocating large ones costs page faults.

    similar (N, K), centers (K, D), d_centers (K, D), d_unit (N, D), d_bias (K,) are overwritten at will;
    logits holds one (N, K) array per block if they are kept, else one for all.
    """

    def __init__(self, num_rows, block_sizes, embedding_size, context, keep_logits):
        def empty(*shape):
            return mx.nd.empty(shape, ctx=context)
        largest = max(block_sizes)
        self.num_rows = num_rows
        self._similar = empty(num_rows * largest)
        self._centers, self._d_centers = empty(largest, embedding_size), empty(largest, embedding_size)
        self.d_unit, self._d_bias = empty(num_rows, embedding_size), empty(largest)
        self._logits = [empty(num_rows * size) for size in (block_sizes if keep_logits else [largest])]

    def of_block(self, number, num_classes):
        """The arrays cut to block `number` of so many classes."""
        def matrix(flat):
            return flat[:self.num_rows * num_classes].reshape((self.num_rows, num_classes))
        return BlockScratch(matrix(self._logits[number % len(self._logits)]), matrix(self._similar),
                            self._centers[:num_classes], self._d_centers[:num_classes], self.d_unit,
                            self._d_bias[:num_classes])


BlockScratch = namedtuple('BlockScratch', 'logits similar centers d_centers d_unit d_bias')


class BlockStep:
    """One block during one step: its logits, and where the batch's labels meet it.

    unit (N, D) are the rows to compare with; places (2, n) int32 the rows and columns of label entries,
    or None. margin None: logit = x w + b. Else logit = scale * cosine, label entries replaced by the
    margin's.
    """

    def __init__(self, block, unit, places, margin, keep_logits, scratch):
        self.block, self.unit, self.places, self.margin = block, unit, places, margin
        self.keep_logits, self.scratch = keep_logits, scratch
        self.inverse_norm = None if margin is None else block.inverse_norm(scratch.centers)
        self.product = self.log_sum = None

    def label_similarity(self):
        """(n,) cosine (or plain logit) of each label entry: the product of n rows, not of the block."""
        rows, columns = self.places
        centers = mx.nd.take(self.block.weight, columns)                           # (n, D)
        value = mx.nd.sum(mx.nd.take(self.unit, rows) * centers, axis=1)
        if self.margin is None:
            bias = self.block.bias
            return value if bias is None else value + mx.nd.take(bias, columns)
        return value * mx.nd.take(self.inverse_norm.reshape((-1,)), columns)

    def forward(self, label_logit, measure):
        """label_logit (n,) -> (log_sum, best), (N,) each; best only if measured, else None."""
        self.label_logit = label_logit
        self._compute_logits()
        self.log_sum = block_log_sum(self.scratch.logits, self.scratch.similar)
        return self.log_sum, row_maximum(self.scratch.logits) if measure else None

    def _compute_logits(self):
        block, scratch = self.block, self.scratch
        grads = [scratch.d_unit, scratch.d_centers] + ([] if block.bias is None else [scratch.d_bias])
        self.product = Product(self.unit, block.weight, block.bias, scratch.logits, grads)
        if self.margin is not None:
            mx.nd.broadcast_mul(scratch.logits, self.inverse_norm * self.margin.scale, out=scratch.logits)
        if self.places is not None:
            set_entries(scratch.logits, self.places, self.label_logit)

    def backward(self, log_sum, label_similarity, d_labels, solver):
        """Update the block, return d loss / d unit (N, D), overwritten by the next block.

        log_sum (N,) over all classes; label_similarity, d_labels (n,): similarity of the label entries
        and the gradient of the loss for it.
        """
        if not self.keep_logits:
            self._compute_logits()
        scale = 1.0 if self.margin is None else self.margin.scale
        d_similarity = mx.nd.softmax(self.scratch.logits, out=self.scratch.similar)
        row_factor = mx.nd.exp(self.log_sum - log_sum) * (scale / len(log_sum))
        mx.nd.broadcast_mul(d_similarity, row_factor.reshape((-1, 1)), out=d_similarity)
        if self.places is not None:
            set_entries(d_similarity, self.places, d_labels)
        if self.margin is None:
            self.product.backward(d_similarity)
        else:
            self._backward_cosine(d_similarity, label_similarity)
        self.block.update(self.scratch.d_centers, self.scratch.d_bias, *solver)
        return self.scratch.d_unit

    def _backward_cosine(self, d_cosine, label_cosine):
        """cosine = x w / |w|, so d_w = (sum_n d_cos x - (sum_n d_cos cos) w / |w|) / |w|."""
        logits, scratch = self.scratch.logits, self.scratch
        if self.places is not None:
            set_entries(logits, self.places, label_cosine * self.margin.scale)
        mx.nd.elemwise_mul(d_cosine, logits, out=logits)
        ones = mx.nd.ones((1, len(logits)), ctx=logits.context)
        pull = mx.nd.dot(ones, logits) / self.margin.scale                         # (1, K)
        mx.nd.broadcast_mul(d_cosine, self.inverse_norm, out=d_cosine)
        self.product.backward(d_cosine)
        shrink = -pull * mx.nd.square(self.inverse_norm)
        mx.nd.broadcast_mul(self.block.weight, shrink.reshape((-1, 1)), out=scratch.centers)
        mx.nd.elemwise_add(scratch.d_centers, scratch.centers, out=scratch.d_centers)


class LabelEntries:
    """The label entries of a shard: rows of the batch whose class it holds, sorted by block.

    rows (n,) int32 on the context; places: per block a (2, n_b) int32 array of rows and columns, or None;
    spans: per block the half-open range among the n entries.
    """

    def __init__(self, labels, blocks, context):
        located = locate(labels, [(block.start, block.stop) for block in blocks])
        edges = np.cumsum([0] + [len(rows) for rows, _ in located])
        self.spans = list(zip(edges[:-1], edges[1:]))
        self.count = edges[-1]
        self.places = [None] * len(blocks)
        if not self.count:
            return
        rows = np.concatenate([rows for rows, _ in located])
        packed = np.concatenate([rows] + [part for pair in located for part in pair]).astype(np.int32)
        packed = mx.nd.array(packed, ctx=context, dtype=np.int32)      # one copy to the device for all
        self.rows = packed[:self.count]
        for block, (first, last) in enumerate(self.spans):
            if first < last:
                start = self.count + 2 * first
                self.places[block] = packed[start:start + 2 * (last - first)].reshape((2, -1))

    def spread(self, values, num_rows):
        """values (n,) -> (N,), each at its row, 0 elsewhere."""
        return mx.nd.scatter_nd(values, self.rows.reshape((1, -1)), shape=(num_rows,))


class HeadShard:
    """The blocks of one shard. forward() and backward() make one step; no collectives inside."""

    def __init__(self, blocks, context, margin, keep_logits=True):
        """margin: Margin, or None for the plain inner product. keep_logits: hold (N, C_s) logits between
        the two halves of a step (three products), else compute each block's again (four, lean)."""
        self.blocks, self.context, self.margin, self.keep_logits = blocks, context, margin, keep_logits
        self._scratch = None

    @classmethod
    def initial(cls, start, stop, embedding_size, context, margin, seed, block_size=None, with_bias=False,
                keep_logits=True):
        """Fresh centers for the classes [start, stop)."""
        size = block_size or default_block_size(embedding_size)
        blocks = [ClassBlock.initial(*edges, embedding_size=embedding_size, context=context, seed=seed,
                                     with_bias=with_bias)
                  for edges in block_ranges(start, stop, size)]
        return cls(blocks, context, margin, keep_logits)

    @property
    def num_classes(self):
        return sum(block.stop - block.start for block in self.blocks)

    def forward(self, unit, labels, measure):
        """unit (N, D) float32 on this context, labels (N,) int64 on the host -> Statistics of the shard."""
        num_rows = len(labels)
        nothing = mx.nd.full((num_rows,), NOTHING, ctx=self.context)
        self._entries = LabelEntries(labels, self.blocks, self.context)
        self._steps = self._block_steps(unit)
        target_logit, target_plain = self._label_statistics(num_rows)
        log_sums, bests = [nothing], [nothing]
        for step, (first, last) in zip(self._steps, self._entries.spans):
            log_sum, best = step.forward(self._label_logit[first:last] if first < last else None, measure)
            log_sums.append(log_sum)
            bests.append(best)
        log_sum = log_sum_exp(mx.nd.stack(*log_sums, axis=0))
        best = mx.nd.max(mx.nd.stack(*bests, axis=0), axis=0) if measure else nothing
        return Statistics.of(log_sum, target_logit, target_plain, best)

    def _block_steps(self, unit):
        if not self.blocks:
            return []
        sizes = [len(block.weight) for block in self.blocks]
        if self._scratch is None or self._scratch.num_rows != len(unit):
            self._scratch = Scratch(len(unit), sizes, unit.shape[1], self.context, self.keep_logits)
        return [BlockStep(block, unit, places, self.margin, self.keep_logits,
                          self._scratch.of_block(number, len(block.weight)))
                for number, (block, places) in enumerate(zip(self.blocks, self._entries.places))]

    def _label_statistics(self, num_rows):
        """Margin of the label entries of all blocks at once -> target logit and plain logit, (N,) each."""
        if not self._entries.count:
            zeros = mx.nd.zeros((num_rows,), ctx=self.context)
            return zeros, zeros
        similarity = mx.nd.concat(*[step.label_similarity() for step in self._steps
                                    if step.places is not None], dim=0)
        self._label_similarity = plain = logit = similarity
        self._label_slope = mx.nd.ones_like(similarity)
        if self.margin is not None:
            logit, self._label_slope = self.margin.target(similarity)
            plain = similarity * self.margin.scale
        self._label_logit = logit
        return self._entries.spread(logit, num_rows), self._entries.spread(plain, num_rows)

    def backward(self, log_sum, lr, momentum, wd):
        """Second half: log_sum (N,) over all classes -> d loss / d unit (N, D) of this shard's classes.

        The loss is the mean over the N rows. All blocks are updated on the way. None for an empty shard.
        """
        entries = self._entries
        if entries.count:
            probability = mx.nd.exp(self._label_logit - mx.nd.take(log_sum, entries.rows))
            d_labels = (probability - 1.0) * self._label_slope / len(log_sum)
        d_unit = None
        for step, (first, last) in zip(self._steps, entries.spans):
            label_parts = (None, None)
            if first < last:
                label_parts = self._label_similarity[first:last], d_labels[first:last]
            part = step.backward(log_sum, *label_parts, (lr, momentum, wd))
            d_unit = part.copy() if d_unit is None else mx.nd.elemwise_add(d_unit, part, out=d_unit)
        self._steps = None
        return d_unit
