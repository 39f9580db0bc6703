"""The classification layer: one shard of class centers on one device, in blocks.

N global batch, D embedding size, C_s classes of this shard, K classes of one block.
Nothing of size (C_s, D) exists besides centers and momentum: a block's gradient is applied and forgotten.
"""
from collections import namedtuple

import numpy as np

from common.mxnet_loader import mx
from recognition.class_block import ClassBlock, PickedBlock, default_block_size, inverse_root, set_entries
from recognition.product import Product
from recognition.sampling import Sampler
from recognition.sharding import block_ranges, locate
from recognition.softmax import NOTHING, Statistics, block_log_sum, log_sum_exp, row_maximum

# Label entries are divided by the share of their block in the softmax, which may be 0 in float32. A softmax that is
# counted with this share in its place changes no gradient by more than that.
SHARE_FLOOR = 1e-20


class Scratch:
    """Arrays that every block and step of a shard uses again; allocating large ones costs page faults.

    similar (N, K), d_centers (K, D), rows, d_rows (N, D) are overwritten at will; logits holds one (N, K) array per
    block if they are kept, else one for all.
    """

    def __init__(self, num_rows, block_sizes, embedding_size, context, keep_logits):
        def empty(*shape):
            return mx.nd.empty(shape, ctx=context)
        largest = max(block_sizes)
        self.num_rows = num_rows
        self.rows, self.d_rows = empty(num_rows, embedding_size), empty(num_rows, embedding_size)
        self._similar, self._d_centers = empty(num_rows * largest), empty(largest, embedding_size)
        self._logits = [empty(num_rows * size) for size in (block_sizes if keep_logits else [largest])]
        self._cuts = [None] * len(block_sizes)

    def of_block(self, number, num_classes):
        """The arrays cut to block `number` of so many classes."""
        if self._cuts[number] is None or len(self._cuts[number].d_centers) != num_classes:
            self._cuts[number] = self._cut(self._logits[number % len(self._logits)], num_classes)
        return self._cuts[number]

    def _cut(self, logits, num_classes):
        def matrix(flat):
            return flat[:self.num_rows * num_classes].reshape((self.num_rows, num_classes))
        return BlockScratch(matrix(logits), matrix(self._similar), self._d_centers[:num_classes],
                            self.rows, self.d_rows)


BlockScratch = namedtuple('BlockScratch', 'logits similar d_centers rows d_rows')


def add_rows(factors, rows, total):
    """total += factors * rows in one pass; factors (1, K), rows and total (K, D)."""
    single = (rows.shape[0], 1, -1)                             # a batch of matrices of one row each
    total = total.reshape(single)
    mx.nd.linalg.gemm(factors.reshape((-1, 1, 1)), rows.reshape(single), total, out=total)


class CosineScales:
    """Factors of cosine logits that go with a column (class): flat arrays over all classes that take part.

    inverse_norm = 1 / |w|; logit = inverse_norm * s * (x w); shrink = - inverse_norm^2 / s
    """

    def __init__(self, blocks, scale, scratch):
        """blocks: one after the other; scale s; scratch.d_centers is overwritten."""
        self._edges = np.cumsum([0] + [len(block.weight) for block in blocks])
        squares = mx.nd.empty((self._edges[-1], 1), ctx=blocks[0].weight.context)
        ones = mx.nd.ones((1, blocks[0].weight.shape[1]), ctx=squares.context)
        for number, block in enumerate(blocks):
            work = mx.nd.square(block.weight, out=scratch.of_block(number, len(block.weight)).d_centers)
            mx.nd.FullyConnected(work, ones, num_hidden=1, no_bias=True, out=squares[slice(*self._span(number))])
        self.flat = inverse_root(squares.reshape((-1,)))
        self._parts = self.flat, self.flat * scale, mx.nd.square(self.flat) * (-1.0 / scale)

    def _span(self, number):
        return int(self._edges[number]), int(self._edges[number + 1])

    def of_block(self, number):
        """(inverse_norm, logit factor, shrink), (1, K) each, of one block."""
        return [part[slice(*self._span(number))].reshape((1, -1)) for part in self._parts]


class BlockStep:
    """One block during one step: its logits, and where the batch's labels meet it.

    unit (N, D) are the rows to compare with; places (2, n) int32 the rows and columns of label entries,
    or None. scales None: logit = x w + b. Else those of CosineScales: logit = s * cosine. Label entries have a
    logit of their own, with the margin.
    """

    def __init__(self, block, unit, places, scales, keep_logits, scratch):
        """scratch: BlockScratch, whose rows hold unit."""
        self.block, self.unit, self.places = block, unit, places
        self.inverse_norm, self.logit_factor, self.shrink = scales or (None, None, None)
        self.keep_logits, self.scratch, self.product = keep_logits, scratch, None

    def forward(self, label_logit, measure):
        """label_logit (n,) -> (log_sum, best), (N,) each; best only if measured, else None."""
        self.label_logit = label_logit
        self._compute_logits()
        log_sum = block_log_sum(self.scratch.logits, self.scratch.similar)
        return log_sum, row_maximum(self.scratch.logits) if measure else None

    def _compute_logits(self):
        block, scratch = self.block, self.scratch
        self.product = Product(scratch.rows, block.weight, block.bias, scratch.logits,
                               [scratch.d_rows, scratch.d_centers])
        if self.logit_factor is not None:
            mx.nd.broadcast_mul(scratch.logits, self.logit_factor, out=scratch.logits)
        if self.places is not None:
            set_entries(scratch.logits, self.places, self.label_logit)

    def backward(self, row_factor, label_plain, d_labels, solver):
        """Update the block, return d loss / d unit (N, D), overwritten by the next block.

        row_factor (N,): what turns the softmax over the block into d loss / d similarity; label_plain, d_labels
        (n,): logit of the label entries without margin, and what stands in their place in that softmax.
        """
        block, scratch = self.block, self.scratch
        if not self.keep_logits:
            self.unit.copyto(scratch.rows)
            self._compute_logits()
        part = mx.nd.softmax(scratch.logits, out=scratch.similar)          # d loss / d similarity = row_factor * part
        if self.places is not None:
            set_entries(part, self.places, d_labels)
        across = row_factor.reshape((1, -1))
        d_bias = None if block.bias is None else mx.nd.dot(across, part).reshape((-1,))
        pull = None if self.shrink is None else self._pull(part, across, label_plain)
        # the factor of a row goes to the (N, D) features on both sides of the products, not to the (N, K) matrix
        mx.nd.broadcast_mul(self.unit, row_factor.reshape((-1, 1)), out=scratch.rows)
        self.product.backward(part)
        if pull is not None:
            add_rows(pull, block.weight, scratch.d_centers)
        block.update(scratch.d_centers, d_bias, *solver)
        return mx.nd.broadcast_mul(scratch.d_rows, row_factor.reshape((-1, 1)), out=scratch.d_rows)

    def _pull(self, part, across, label_plain):
        """(1, K): d_w = (sum_n d_cos x - (sum_n d_cos cos) w / |w|) / |w| has this times w. part gets the 1 / |w|."""
        logits = self.scratch.logits
        if self.places is not None:
            set_entries(logits, self.places, label_plain)
        mx.nd.elemwise_mul(part, logits, out=logits)
        mx.nd.broadcast_mul(part, self.inverse_norm, out=part)
        return mx.nd.dot(across, logits) * self.shrink


class LabelEntries:
    """The label entries of a shard: rows of the batch whose class it holds, sorted by block.

    rows (n,) int32 on the context; places: per block a (2, n_b) int32 array of rows and columns, or None;
    spans: per block the half-open range among the n entries; positions (n,) int32: columns, counted from the first
    block's first class on; row_places (n,) int32: places of the rows in an array (blocks, N).
    """

    def __init__(self, located, block_sizes, num_rows, context):
        """located: per block the (rows, columns) of labels, int64 arrays."""
        edges = np.cumsum([0] + [len(rows) for rows, _ in located])
        self.spans = list(zip(edges[:-1], edges[1:]))
        self.count = edges[-1]
        self.places = [None] * len(located)
        if not self.count:
            return
        starts = np.cumsum([0] + list(block_sizes))
        rows = [rows for rows, _ in located]
        positions = [columns + start for (_, columns), start in zip(located, starts)]
        row_places = [rows + block * num_rows for block, (rows, _) in enumerate(located)]
        packed = np.concatenate(rows + positions + row_places + [part for pair in located for part in pair])
        packed = mx.nd.from_numpy(packed.astype(np.int32)).as_in_context(context)      # one copy to the device for all
        self.rows, self.positions, self.row_places = (packed[part * self.count:(part + 1) * self.count]
                                                      for part in range(3))
        for block, (first, last) in enumerate(self.spans):
            if first < last:
                start = 3 * self.count + 2 * first
                self.places[block] = packed[start:start + 2 * (last - first)].reshape((2, -1))

    def spread(self, values, num_rows):
        """values (n,) -> (N,), each at its row, 0 elsewhere."""
        return mx.nd.scatter_nd(values, self.rows.reshape((1, -1)), shape=(num_rows,))


class HeadShard:
    """The blocks of one shard. forward() and backward() make one step; no collectives inside."""

    def __init__(self, blocks, context, margin, sampler, keep_logits=True):
        """margin: Margin, or None for the plain inner product. sampler: which classes take part in a step.

        keep_logits: hold (N, C_s) logits between the two halves of a step (three products), else compute each
        block's again (four, lean).
        """
        self.blocks, self.context, self.margin, self.sampler = blocks, context, margin, sampler
        self.keep_logits, self._scratch = keep_logits, None

    @classmethod
    def initial(cls, start, stop, embedding_size, context, margin, seed, block_size=None, with_bias=False,
                sample_ratio=1.0, keep_logits=True):
        """Fresh centers for the classes [start, stop)."""
        size = block_size or default_block_size(embedding_size)
        blocks = [ClassBlock.initial(*edges, embedding_size=embedding_size, context=context, seed=seed,
                                     with_bias=with_bias)
                  for edges in block_ranges(start, stop, size)]
        return cls(blocks, context, margin, Sampler(sample_ratio, seed), keep_logits)

    @property
    def num_classes(self):
        return sum(block.stop - block.start for block in self.blocks)

    def begin(self, labels, embedding_size, num_update=0):
        """Before the embeddings are there: what takes part in a step, and the norms. labels (N,) int64 on the host.

        num_update: number of the step; with the seed and the class ids it decides what is sampled.
        """
        located = locate(labels, [(block.start, block.stop) for block in self.blocks])
        self._picked, located = self._pick(located, num_update)
        sizes = [len(block.weight) for block in self._picked]
        if self.blocks and (self._scratch is None or self._scratch.num_rows != len(labels)):
            capacities = [self.sampler.capacity(len(block.weight), len(labels)) for block in self.blocks]
            self._scratch = Scratch(len(labels), capacities, embedding_size, self.context, self.keep_logits)
        self._scales = None
        if self._picked and self.margin is not None:
            self._scales = CosineScales(self._picked, self.margin.scale, self._scratch)
        self._entries = LabelEntries(located, sizes, len(labels), self.context)

    def forward(self, unit, measure):
        """After begin(). unit (N, D) float32 on this context -> Statistics of the shard."""
        nothing = mx.nd.full((len(unit),), NOTHING, ctx=self.context)
        self._steps = self._block_steps(unit)
        target_logit, target_plain = self._label_statistics(unit)
        log_sums, bests = [], []
        for step, (first, last) in zip(self._steps, self._entries.spans):
            log_sum, best = step.forward(self._label_logit[first:last] if first < last else None, measure)
            log_sums.append(log_sum)
            bests.append(best)
        self._log_sums = mx.nd.stack(*log_sums, axis=0) if log_sums else nothing.reshape((1, -1))       # (blocks, N)
        best = mx.nd.max(mx.nd.stack(*bests, axis=0), axis=0) if measure and bests else nothing
        return Statistics.of(log_sum_exp(self._log_sums), target_logit, target_plain, best)

    def _pick(self, located, num_update):
        """Blocks of the classes that take part, and where the labels are in them."""
        if self.sampler.ratio == 1:
            return self.blocks, located
        blocks, moved = [], []
        for block, (rows, columns) in zip(self.blocks, located):
            picked = self.sampler.pick(columns, block.start, len(block.weight), num_update)
            blocks.append(PickedBlock(block, picked))
            moved.append((rows, np.searchsorted(picked, columns)))
        return blocks, moved

    def _block_steps(self, unit):
        if self._picked:
            unit.copyto(self._scratch.rows)
        return [BlockStep(block, unit, places, self._scales and self._scales.of_block(number), self.keep_logits,
                          self._scratch.of_block(number, len(block.weight)))
                for number, (block, places) in enumerate(zip(self._picked, self._entries.places))]

    def _label_statistics(self, unit):
        """Margin of the label entries of all blocks at once -> target logit and plain logit, (N,) each."""
        entries, num_rows = self._entries, len(unit)
        if not entries.count:
            zeros = mx.nd.zeros((num_rows,), ctx=self.context)
            return zeros, zeros
        similarity = self._label_similarity(unit)
        self._label_plain = self._label_logit = similarity
        self._label_slope = mx.nd.ones_like(similarity)
        if self.margin is not None:
            self._label_logit, self._label_slope = self.margin.target(similarity)
            self._label_plain = similarity * self.margin.scale
        return entries.spread(self._label_logit, num_rows), entries.spread(self._label_plain, num_rows)

    def _label_similarity(self, unit):
        """(n,) cosine (or plain logit) of each label entry: the product of n rows, not of whole blocks."""
        entries, blocks = self._entries, self._picked
        owning = [(block, places[1]) for block, places in zip(blocks, entries.places) if places is not None]
        centers = mx.nd.concat(*[mx.nd.take(block.weight, columns) for block, columns in owning], dim=0)   # (n, D)
        value = mx.nd.sum(mx.nd.take(unit, entries.rows) * centers, axis=1)
        if self.margin is not None:
            return value * mx.nd.take(self._scales.flat, entries.positions)
        if blocks[0].bias is not None:
            value = value + mx.nd.concat(*[mx.nd.take(block.bias, columns) for block, columns in owning], dim=0)
        return value

    def backward(self, log_sum, lr, momentum, wd):
        """Second half: log_sum (N,) over all classes -> d loss / d unit (N, D) of this shard's classes.

        The loss is the mean over the N rows. All blocks are updated on the way. None for an empty shard.
        """
        entries, num_rows = self._entries, len(log_sum)
        scale = 1.0 if self.margin is None else self.margin.scale
        share = mx.nd.exp(mx.nd.broadcast_sub(self._log_sums, log_sum.reshape((1, -1))))
        row_factors = mx.nd.maximum(share, SHARE_FLOOR) * (scale / num_rows)                   # (blocks, N)
        if entries.count:
            probability = mx.nd.exp(self._label_logit - mx.nd.take(log_sum, entries.rows))
            d_labels = (probability - 1.0) * self._label_slope / num_rows
            d_labels = d_labels / mx.nd.take(row_factors.reshape((-1,)), entries.row_places)
        d_unit = None
        for number, (step, (first, last)) in enumerate(zip(self._steps, entries.spans)):
            label_parts = (None, None)
            if first < last:
                label_parts = self._label_plain[first:last], d_labels[first:last]
            part = step.backward(row_factors[number], *label_parts, (lr, momentum, wd))
            d_unit = part.copy() if d_unit is None else mx.nd.elemwise_add(d_unit, part, out=d_unit)
        self._steps = self._picked = self._scales = None
        return d_unit
