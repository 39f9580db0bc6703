"""The classification layer: one shard of class centers on one device, in blocks.

N global batch, D embedding size, C_s classes of this shard, K classes of one block.
Nothing of size (C_s, D) exists besides centers and momentum: a block's gradient is applied and forgotten.
"""
import functools

import numpy as np

from common.mxnet_loader import mx
from recognition.block_step import BlockStep, CosineScales, Scratch
from recognition.class_block import ClassBlock, PickedBlock, default_block_size, inverse_root
from recognition.product import Product
from recognition.sampling import Sampler
from recognition.sharding import block_ranges, locate
from recognition.softmax import NOTHING, Statistics, log_sum_exp

# Label entries are divided by the share of their block in the softmax, which may be 0 in float32. A softmax that is
# counted with this share in its place changes no gradient by more than that.
SHARE_FLOOR = 1e-20


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

    def __init__(self, blocks, context, margin, sampler, keep_logits=True, interclass_filter=0.0, product=Product,
                 smoothing=None):
        """margin: Margin, or None for the plain inner product. sampler: which classes take part in a step.

        keep_logits: hold (N, C_s) logits between the two halves of a step (three products), else compute each
        block's again (four, lean). interclass_filter: cosine above which a negative is left out; 0: none is.
        product: Product, or one that makes HalfProducts. smoothing: Smoothing, or None; not with a sampler that leaves
        out classes, nor with a filter.
        """
        self.blocks, self.context, self.margin, self.sampler = blocks, context, margin, sampler
        self.keep_logits, self._product, self._scratch = keep_logits, product, None
        self.smoothing = smoothing
        self._limit = interclass_filter * (1.0 if margin is None else margin.scale)

    @classmethod
    def initial(cls, start, stop, embedding_size, context, margin, seed, block_size=None, with_bias=False,
                sample_ratio=1.0, keep_logits=True, sub_centers=1, interclass_filter=0.0, product=Product,
                smoothing=None):
        """Fresh centers for the classes [start, stop), sub_centers of them for each."""
        size = block_size or default_block_size(embedding_size * sub_centers)
        blocks = [ClassBlock.initial(*edges, embedding_size=embedding_size, context=context, seed=seed,
                                     with_bias=with_bias, sub_centers=sub_centers)
                  for edges in block_ranges(start, stop, size)]
        return cls(blocks, context, margin, Sampler(sample_ratio, seed), keep_logits, interclass_filter, product,
                   smoothing)

    @property
    def num_classes(self):
        return sum(block.num_classes for block in self.blocks)

    def begin(self, labels, embedding_size, num_update=0, step_labels=None):
        """Before the embeddings are there: what takes part in a step, and the norms. labels (N,) int64 on the host.

        num_update: number of the step; with the seed and the class ids it decides what is sampled. step_labels: of all
        parts of the step, where labels are those of one part; None: labels.
        """
        step_labels = labels if step_labels is None else step_labels
        if self.blocks and (self._scratch is None or self._scratch.num_rows != len(labels)):
            capacities = [self.sampler.capacity(block.num_classes, len(step_labels)) for block in self.blocks]
            self._scratch = Scratch(len(labels), capacities, embedding_size, self.context, self.keep_logits,
                                    self.blocks[0].sub_centers, self.sampler.ratio < 1)
        self._picked, located = self._pick(self._located(labels), step_labels, num_update)
        sizes = [block.num_classes for block in self._picked]
        self._scales = None
        if self._picked and self.margin is not None:
            self._scales = CosineScales(self._picked, self.margin.scale, self._scratch)
        self._entries = LabelEntries(located, sizes, len(labels), self.context)

    def forward(self, unit, measure, row_margins=None):
        """After begin(). unit (N, D) float32 on this context -> Statistics of the shard.

        row_margins: of Margin.of_rows(), on this context too.
        """
        nothing = mx.nd.full((len(unit),), NOTHING, ctx=self.context)
        self._steps = self._block_steps(unit)
        target_logit, target_plain = self._label_statistics(unit, row_margins)
        log_sums, bests, smoothing = [], [], self.smoothing
        if smoothing is not None:
            target_logit = smoothing.own * target_logit
        for step, (first, last) in zip(self._steps, self._entries.spans):
            log_sum, best = step.forward(self._label_logit[first:last] if first < last else None, measure)
            log_sums.append(log_sum)
            bests.append(best)
            if smoothing is not None:
                target_logit = target_logit + smoothing.every * step.logit_sum()
        self._log_sums = mx.nd.stack(*log_sums, axis=0) if log_sums else nothing.reshape((1, -1))       # (blocks, N)
        best = mx.nd.max(mx.nd.stack(*bests, axis=0), axis=0) if measure and bests else nothing
        return Statistics.of(log_sum_exp(self._log_sums), target_logit, target_plain, best)

    def center_norms(self):
        """After begin(), before backward(): (J, C_s) lengths of the centers that take part; None for an empty shard."""
        if not self._picked:
            return None
        scales = self._scales or CosineScales(self._picked, 1.0, self._scratch)
        return mx.nd.square(inverse_root(scales.inverse_norm))                     # 1 / x, and 0 for 0

    def _located(self, labels):
        """Per block the (rows, columns) of labels."""
        return locate(labels, [(block.start, block.stop) for block in self.blocks])

    def _pick(self, located, step_labels, num_update):
        """Blocks of the classes that take part, and where the labels are in them. located: of _located()."""
        if self.sampler.ratio == 1:
            return self.blocks, located
        blocks, moved = [], []
        of_step = [columns for _, columns in self._located(step_labels)]
        for number, (block, (rows, columns), all_columns) in enumerate(zip(self.blocks, located, of_step)):
            picked = self.sampler.pick(all_columns, block.start, block.num_classes, num_update)
            blocks.append(PickedBlock(block, picked, self._scratch.picked[number], self._scratch.picked_momentum))
            moved.append((rows, np.searchsorted(picked, columns)))
        return blocks, moved

    def _block_steps(self, unit):
        if self._picked:
            unit.copyto(self._scratch.rows)
        return [BlockStep(block, unit, places, self._scales and self._scales.of_block(number), self._limit,
                          self.keep_logits, self._scratch.of_block(number, block.num_classes), self._product)
                for number, (block, places) in enumerate(zip(self._picked, self._entries.places))]

    def _label_statistics(self, unit, row_margins):
        """Margin of the label entries of all blocks at once -> target logit and plain logit, (N,) each."""
        entries, num_rows = self._entries, len(unit)
        if not entries.count:
            zeros = mx.nd.zeros((num_rows,), ctx=self.context)
            return zeros, zeros
        similarity = self._label_similarity(unit)
        self._label_plain = self._label_logit = similarity
        self._label_slope = mx.nd.ones_like(similarity)
        if self.margin is not None:
            added = None if row_margins is None else mx.nd.take(row_margins, entries.rows, axis=1)      # (2, n)
            self._label_logit, self._label_slope = self.margin.target(similarity, added)
            self._label_plain = similarity * self.margin.scale
        return entries.spread(self._label_logit, num_rows), entries.spread(self._label_plain, num_rows)

    def _label_similarity(self, unit):
        """(n,) cosine (or plain logit) of each label entry: the product of n rows, not of whole blocks."""
        entries, blocks = self._entries, self._picked
        owning = [(block, places[1]) for block, places in zip(blocks, entries.places) if places is not None]
        rows, values = mx.nd.take(unit, entries.rows), []
        for number in range(blocks[0].sub_centers):
            centers = [mx.nd.take(block.centers[number], columns) for block, columns in owning]
            values.append(mx.nd.sum(rows * mx.nd.concat(*centers, dim=0), axis=1))
            if self.margin is not None:
                values[-1] = values[-1] * mx.nd.take(self._scales.inverse_norm[number], entries.positions)
        value = functools.reduce(mx.nd.maximum, values)
        if self.margin is None and blocks[0].bias is not None:
            value = value + mx.nd.concat(*[mx.nd.take(block.bias, columns) for block, columns in owning], dim=0)
        return value

    def backward(self, log_sum, solver, parts=1):
        """Second half: log_sum (N,) over all classes -> d loss / d unit (N, D) of this shard's classes.

        The loss is the mean over the rows of the step, N times its parts. All blocks are updated on the way; solver:
        arguments of ClassBlock.update behind the gradients. None for an empty shard.
        """
        entries, num_rows, smoothing = self._entries, len(log_sum) * parts, self.smoothing
        scale = 1.0 if self.margin is None else self.margin.scale
        share = mx.nd.exp(mx.nd.broadcast_sub(self._log_sums, log_sum.reshape((1, -1))))
        floor, wanted, smoothed = SHARE_FLOOR, 1.0, [None] * len(share)
        if smoothing is not None:
            floor, wanted = max(SHARE_FLOOR, smoothing.every), smoothing.own + smoothing.every
        counted = mx.nd.maximum(share, floor)                                                  # (blocks, N)
        if smoothing is not None:                      # with that floor no number below is larger than 1
            smoothed = list(zip(share / counted, smoothing.every / counted))
        row_factors = counted * (scale / num_rows)
        if entries.count:
            probability = mx.nd.exp(self._label_logit - mx.nd.take(log_sum, entries.rows))
            d_labels = (probability - wanted) * self._label_slope / num_rows
            d_labels = d_labels / mx.nd.take(row_factors.reshape((-1,)), entries.row_places)
        d_unit = None
        for number, (step, (first, last)) in enumerate(zip(self._steps, entries.spans)):
            label_parts = (None, None)
            if first < last:
                label_parts = self._label_plain[first:last], d_labels[first:last]
            part = step.backward(row_factors[number], *label_parts, solver, smoothed[number])
            d_unit = part.copy() if d_unit is None else mx.nd.elemwise_add(d_unit, part, out=d_unit)
        self._steps = self._picked = self._scales = None
        return d_unit
