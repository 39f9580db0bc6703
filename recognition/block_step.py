"""One block of class centers during one step: logits, statistics, gradients, update.

N global batch, D embedding size, K classes of a block, J centers per class (config.sub_centers, mostly 1).
"""
from collections import namedtuple

import numpy as np

from common.mxnet_loader import mx
from recognition.class_block import inverse_root, set_entries
from recognition.product import Buffers
from recognition.softmax import block_log_sum, row_maximum

LEFT_OUT = -1e9       # added to a logit, it makes its softmax 0; times SHARE_FLOOR (head.py) it is nothing still


class Scratch:
    """Arrays that every block and step of a shard uses again; allocating large ones costs page faults.

    similar, other (N, K), d_centers (J K, D), rows, d_rows (N, D) are overwritten at will; logits and winner hold one
    (N, K) array per block if they are kept, else one for all. other and winner are None with one center per class.
    picked holds the centers of each block that take part in a step, picked_momentum (J K, D) their momentum, of a block
    at a time; None where all take part. buffers: for the products.
    """

    def __init__(self, num_rows, block_sizes, embedding_size, context, keep_logits, sub_centers, sampled=False):
        """block_sizes: most classes of each block. sampled: these are picked anew for each step."""
        def empty(*shape):
            return mx.nd.empty(shape, ctx=context)
        largest, several = max(block_sizes), sub_centers > 1
        kept = block_sizes if keep_logits else [largest]
        self.num_rows, self.sub_centers = num_rows, sub_centers
        self.rows, self.d_rows = empty(num_rows, embedding_size), empty(num_rows, embedding_size)
        self._similar, self._d_centers = empty(num_rows * largest), empty(largest * sub_centers, embedding_size)
        self._other = empty(num_rows * largest) if several else None
        self._logits = [empty(num_rows * size) for size in kept]
        self._winner = [empty(num_rows * size) if several else None for size in kept]
        self._cuts, self.buffers = [None] * len(block_sizes), Buffers(context)
        self.picked = [empty(sub_centers * size, embedding_size) if sampled else None for size in block_sizes]
        self.picked_momentum = empty(sub_centers * largest, embedding_size) if sampled else None

    def of_block(self, number, num_classes):
        """The arrays cut to block `number` of so many classes."""
        if self._cuts[number] is None or self._cuts[number].similar.shape[1] != num_classes:
            self._cuts[number] = self._cut(number % len(self._logits), num_classes)
        return self._cuts[number]

    def _cut(self, kept, num_classes):
        def matrix(flat):
            if flat is None:
                return None
            return flat[:self.num_rows * num_classes].reshape((self.num_rows, num_classes))
        d_centers = self._d_centers[:self.sub_centers * num_classes]
        return BlockScratch(matrix(self._logits[kept]), matrix(self._winner[kept]), matrix(self._similar),
                            matrix(self._other), d_centers, self.rows, self.d_rows, self.buffers)


BlockScratch = namedtuple('BlockScratch', 'logits winner similar other d_centers rows d_rows buffers')


def add_rows(factors, rows, total):
    """total += factors * rows in one pass; factors (1, K), rows and total (K, D)."""
    single = (rows.shape[0], 1, -1)                             # a batch of matrices of one row each
    total = total.reshape(single)
    mx.nd.linalg.gemm(factors.reshape((-1, 1, 1)), rows.reshape(single), total, out=total)


def row_squares(rows, work, out=None):
    """rows (K, D) -> (K, 1) sums of squares; work (K, D) is overwritten."""
    ones = mx.nd.ones((1, rows.shape[1]), ctx=rows.context)
    return mx.nd.FullyConnected(mx.nd.square(rows, out=work), ones, num_hidden=1, no_bias=True, out=out)


class CosineScales:
    """Factors of cosine logits that go with a center: (J, C_s) arrays over all C_s classes that take part.

    inverse_norm = 1 / |w|; logit = inverse_norm * s * (x w); shrink = - inverse_norm^2 / s
    """

    def __init__(self, blocks, scale, scratch):
        """blocks: one after the other; scale s; scratch.d_centers is overwritten."""
        self._edges = np.cumsum([0] + [block.num_classes for block in blocks])
        shape = (blocks[0].sub_centers, int(self._edges[-1]))
        squares = mx.nd.empty(shape + (1,), ctx=blocks[0].weight.context)
        for number, block in enumerate(blocks):
            work = scratch.of_block(number, block.num_classes).d_centers[:block.num_classes]
            for center, weight in enumerate(block.centers):
                row_squares(weight, work, out=squares[center][slice(*self._span(number))])
        self.inverse_norm = inverse_root(squares.reshape(shape))
        self._parts = self.inverse_norm, self.inverse_norm * scale, mx.nd.square(self.inverse_norm) * (-1.0 / scale)

    def _span(self, number):
        return int(self._edges[number]), int(self._edges[number + 1])

    def of_block(self, number):
        """(inverse_norm, logit factor, shrink) of one block, each a list of J arrays (1, K)."""
        return [[flat[slice(*self._span(number))].reshape((1, -1)) for flat in part] for part in self._parts]


class BlockStep:
    """One block during one step: its logits, and where the batch's labels meet it.

    The similarity of a row and a class is that of its nearest center [Sub-center ArcFace, ECCV 2020]; of
    equal ones the first is taken, and it alone gets the gradient.
    """

    def __init__(self, block, unit, places, scales, limit, keep_logits, scratch, product):
        """unit (N, D): the rows to compare with; places (2, n) int32: rows and columns of label entries, or None.

        scales None: logit = x w + b. Else those of CosineScales: logit = s * cosine. Label entries have a logit of
        their own, with the margin. limit: s * cosine (s = 1 if scales is None) above which a negative is left out; 0:
        none is.
        scratch: BlockScratch, whose rows hold unit. product: Product or HalfProduct.
        """
        self.block, self.unit, self.places, self.limit = block, unit, places, limit
        self.inverse_norm, self.logit_factor, self.shrink = scales or (None, None, None)
        self.keep_logits, self.scratch, self._product = keep_logits, scratch, product

    def forward(self, label_logit, measure):
        """label_logit (n,) -> (log_sum, best), (N,) each; best only if measured, else None."""
        self.label_logit = label_logit
        self._compute_logits()
        logits = self.scratch.logits
        columns = mx.nd.argmax(logits, axis=1) if self.limit else None     # the first may be one that is left out
        return block_log_sum(logits, self.scratch.similar, columns), self._best_other() if measure else None

    def logit_sum(self):
        """(N,) sum of the logits over the block; right after forward()."""
        logits = self.scratch.logits
        ones = mx.nd.ones((1, logits.shape[1]), ctx=logits.context)
        return mx.nd.FullyConnected(logits, ones, num_hidden=1, no_bias=True).reshape((-1,))

    def _best_other(self):
        """(N,) largest logit of classes that are not the row's own."""
        logits = self.scratch.logits
        if self.places is None:
            return row_maximum(logits)
        set_entries(logits, self.places, mx.nd.full(self.label_logit.shape, LEFT_OUT, ctx=logits.context))
        best = row_maximum(logits)
        set_entries(logits, self.places, self.label_logit)
        return best

    def _compute_logits(self):
        scratch = self.scratch
        self.products = []
        for number in range(self.block.sub_centers):
            self._compute_similarity(number, scratch.similar if number else scratch.logits)
            if number:
                self._take_larger(number)
        if self.limit:
            self._leave_out()
        if self.places is not None:
            set_entries(scratch.logits, self.places, self.label_logit)

    def _compute_similarity(self, number, out):
        """Logits of one center per class."""
        block, scratch = self.block, self.scratch
        grads = [scratch.d_rows, self._d_centers(number)]
        self.products.append(self._product(scratch.rows, block.centers[number], block.bias, out, grads,
                                           scratch.buffers))
        if self.logit_factor is not None:
            mx.nd.broadcast_mul(out, self.logit_factor[number], out=out)

    def _d_centers(self, number):
        size = self.block.num_classes
        return self.scratch.d_centers[number * size:(number + 1) * size]

    def _take_larger(self, number):
        """Put similar in the place of logits, and its number in that of the winner, where it is larger."""
        logits, winner, similar = self.scratch.logits, self.scratch.winner, self.scratch.similar
        larger = mx.nd.broadcast_greater(similar, logits, out=winner if number == 1 else self.scratch.other)
        if number > 1:
            mx.nd.broadcast_maximum(winner, mx.nd._internal._mul_scalar(larger, scalar=number, out=larger), out=winner)
        mx.nd.broadcast_maximum(logits, similar, out=logits)

    def _leave_out(self):
        """Take negatives that are too near for mislabelled positives: no part of the softmax, no gradient.

        [The interclass_filtering_threshold of insightface's Partial FC, arXiv:2203.15565.] Label entries are set later.
        """
        logits, over = self.scratch.logits, self.scratch.similar
        if self.logit_factor is None:
            mx.nd.broadcast_greater(logits, self._plain_limits(), out=over)
        else:
            mx.nd._internal._greater_scalar(logits, scalar=self.limit, out=over)
        mx.nd._internal._mul_scalar(over, scalar=LEFT_OUT, out=over)
        mx.nd.elemwise_add(logits, over, out=logits)

    def _plain_limits(self):
        """(N, K): limit * |x| |w| + b, what x w + b is at that cosine; w the center that won."""
        block, scratch = self.block, self.scratch
        lengths = mx.nd.sqrt(row_squares(self.unit, scratch.d_rows))                       # (N, 1)
        for number, weight in enumerate(block.centers):
            inputs = [lengths, self.limit * mx.nd.sqrt(row_squares(weight, self._d_centers(number)))]
            inputs += [] if block.bias is None else [block.bias]
            limits = mx.nd.FullyConnected(*inputs, num_hidden=block.num_classes, no_bias=block.bias is None,
                                          out=scratch.other if number else scratch.similar)
            if number:
                mx.nd.where(scratch.winner == number, limits, scratch.similar, out=scratch.similar)
        return scratch.similar

    def backward(self, row_factor, label_plain, d_labels, solver, smoothed=None):
        """Update the block, return d loss / d unit (N, D), overwritten by the next block.

        row_factor (N,): what turns the softmax over the block into d loss / d similarity; label_plain, d_labels
        (n,): logit of the label entries without margin, and what stands in their place in that softmax. smoothed: (N,)
        factor of that softmax and (N,) what is subtracted then, with label smoothing.
        """
        block, scratch = self.block, self.scratch
        if not self.keep_logits:
            self.unit.copyto(scratch.rows)
            self._compute_logits()
        part = mx.nd.softmax(scratch.logits, out=scratch.similar)          # d loss / d similarity = row_factor * part
        if smoothed is not None:
            factor, level = smoothed
            mx.nd.broadcast_mul(part, factor.reshape((-1, 1)), out=part)
            mx.nd.broadcast_sub(part, level.reshape((-1, 1)), out=part)
        if self.places is not None:
            set_entries(part, self.places, d_labels)
        across, down = row_factor.reshape((1, -1)), row_factor.reshape((-1, 1))
        d_bias = None if block.bias is None else mx.nd.dot(across, part).reshape((-1,))
        if self.shrink is not None:
            self._weigh_logits(part, label_plain)
        # the factor of a row goes to the (N, D) features on both sides of the products, not to the (N, K) matrix
        mx.nd.broadcast_mul(self.unit, down, out=scratch.rows)
        d_rows = self._through_products(part, across)
        block.update(scratch.d_centers, d_bias, *solver)
        return mx.nd.broadcast_mul(d_rows, down, out=d_rows)

    def _weigh_logits(self, part, label_plain):
        """Logits become s * cosine * part."""
        logits = self.scratch.logits
        if self.places is not None:
            set_entries(logits, self.places, label_plain)
        mx.nd.elemwise_mul(part, logits, out=logits)

    def _through_products(self, part, across):
        """Fill d_centers; return what of d loss / d unit does not have the row factor yet, (N, D)."""
        d_rows = self.scratch.d_rows
        total = mx.nd.zeros_like(d_rows) if len(self.products) > 1 else d_rows
        for number, product in enumerate(self.products):
            pull = None
            if self.shrink is not None:
                # d_w = (sum_n d_cos x - (sum_n d_cos cos) w / |w|) / |w| has this times w
                pull = mx.nd.dot(across, self._won(number, self.scratch.logits)) * self.shrink[number]     # (1, K)
            d_similar = self._won(number, part)
            if self.shrink is not None:
                mx.nd.broadcast_mul(d_similar, self.inverse_norm[number], out=d_similar)
            product.backward(d_similar, self.places)
            if pull is not None:
                add_rows(pull, self.block.centers[number], self._d_centers(number))
            if total is not d_rows:
                mx.nd.elemwise_add(total, d_rows, out=total)
        return total

    def _won(self, number, matrix):
        """matrix (N, K) where center `number` has won, else 0; it stands in `other` if there are several centers."""
        if self.scratch.winner is None:
            return matrix
        mask = self._mask(number, self.scratch.other)
        return mx.nd.elemwise_mul(matrix, mask, out=mask)

    def _mask(self, number, out):
        """1 where center `number` has won, else 0. hard_sigmoid(x) = min(max(alpha x + beta, 0), 1) is several times
        as fast on CPU as a comparison with a number."""
        winner, last = self.scratch.winner, self.block.sub_centers - 1
        if number == 0:
            return mx.nd.hard_sigmoid(winner, alpha=-1.0, beta=1.0, out=out)
        if number == last:
            return mx.nd.hard_sigmoid(winner, alpha=1.0, beta=1.0 - last, out=out)
        distance = mx.nd.square(mx.nd._internal._minus_scalar(winner, scalar=number, out=out), out=out)
        return mx.nd.hard_sigmoid(distance, alpha=-1.0, beta=1.0, out=out)
