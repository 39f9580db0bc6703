"""One training step: backbone copies on every device, and a head cut over the same devices."""
import numpy as np

from common.mxnet_loader import mx
from recognition.class_block import inverse_root
from recognition.head import HeadShard
from recognition.sharding import shard_range
from recognition.softmax import Smoothing, Statistics


class Head:
    """The whole classification layer as this process sees it: its shards, and the exchange with the others.

    Shard number = rank * devices + device. N is the global batch, over all devices and processes.
    """

    def __init__(self, shards, num_classes, collective, fp16_exchange=False):
        """fp16_exchange: the features of all processes meet rounded to float16."""
        self.shards, self.num_classes, self.collective = shards, num_classes, collective
        self._fp16_exchange, self.margin = fp16_exchange, shards[0].margin

    @classmethod
    def initial(cls, num_classes, embedding_size, contexts, margin, seed, collective, fp16_exchange=False,
                label_smoothing=0.0, **options):
        """Fresh centers that depend on seed and class only, one shard per context.

        label_smoothing: share of the target that is spread over all classes. options: of HeadShard.initial.
        """
        first, total = collective.rank * len(contexts), collective.world_size * len(contexts)
        shards = [HeadShard.initial(*shard_range(num_classes, first + device, total),
                                    embedding_size=embedding_size, context=context, margin=margin,
                                    seed=seed, smoothing=Smoothing.of(label_smoothing, num_classes), **options)
                  for device, context in enumerate(contexts)]
        return cls(shards, num_classes, collective, fp16_exchange)

    def forward_backward(self, embedding, labels, solver, measure=False, num_update=0, part=0):
        """Loss over all classes, gradient for the embedding, and the update of all centers.

        embedding (B, D) float32 and labels (B,) int64 NumPy are this process's rows; solver is
        (lr, momentum, wd). Returns Statistics of all N rows and d_embedding (B, D). With measures in the
        statistics only if measured. Four collectives: features, labels, statistics, feature gradient.
        Nothing here waits for a device.

        A step may come in P parts of B rows, one call each, part = 0 ... P - 1, always with the labels (P, B) of all
        of them. The gradients are those of the mean over all parts, summed up in the centers' momentum; the last part
        moves the centers. So P parts are one step on P N rows, without another array of the size of the centers.
        """
        labels = labels.reshape((-1, len(embedding)))
        num_parts, size = labels.shape
        step_labels = self.collective.allgather(labels.reshape(-1), 'labels')      # (R P B,)
        by_part = step_labels.reshape((-1, num_parts, size))
        labels = by_part[:, part].reshape(-1)                                      # (N,)
        for shard in self.shards:
            shard.begin(labels, embedding.shape[1], num_update, step_labels)
        unit, inverse_norm = self._normalise(embedding)
        features, norms = self._gather(unit, embedding)                            # (N, D)
        margins = self._row_margins(num_update, by_part.shape, part, norms)
        parts = [shard.forward(rows, measure, own_margins)
                 for shard, rows, own_margins in zip(self.shards, self._on_each_device(features), margins)]
        statistics = self._merge(parts, embedding.context)
        if measure:
            statistics.measures.update(self._measures(statistics, embedding))
        solver = of_part(part, num_parts, *solver)
        d_features = [shard.backward(log_sum, solver, num_parts)
                      for shard, log_sum in zip(self.shards, self._on_each_device(statistics.log_sum))]
        total = sum_on(features, d_features)                                       # (N, D)
        d_unit = self.collective.reduce_scatter_sum(total, 'd_features')           # (B, D)
        return statistics, self._through_unit(d_unit, unit, inverse_norm)

    def _gather(self, unit, embedding):
        """Rows (N, D) of all processes, and lengths (N,) of their embeddings if the margin needs them, else None.

        Rounded even in one process: how many there are does not change the numbers.
        """
        needs_norms = self.margin is not None and self.margin.needs_norms
        rows = mx.nd.concat(unit, lengths(embedding), dim=1) if needs_norms else unit
        rows = rows.astype('float16') if self._fp16_exchange else rows
        rows = self.collective.allgather(rows, 'features').astype('float32', copy=False)
        if not needs_norms:
            return rows, None
        return (mx.nd.slice_axis(rows, axis=1, begin=0, end=-1),
                mx.nd.slice_axis(rows, axis=1, begin=-1, end=None).reshape((-1,)))

    def _row_margins(self, num_update, shape, part, norms):
        """Margin.of_rows(), on the device of each shard."""
        margins = None if self.margin is None else self.margin.of_rows(num_update, shape, part, norms)
        return [None] * len(self.shards) if margins is None else self._on_each_device(margins)

    def _on_each_device(self, array):
        """Copies for all shards, made before any shard begins: a copy waits for the work of the device it leaves."""
        return [array.as_in_context(shard.context) for shard in self.shards]

    def _normalise(self, embedding):
        """Rows of length 1 (a zero row stays zero); the plain inner product takes the rows as they are."""
        if self.margin is None:
            return embedding, None
        inverse = inverse_root(mx.nd.sum(mx.nd.square(embedding), axis=1, keepdims=True))
        return mx.nd.broadcast_mul(embedding, inverse), inverse

    @staticmethod
    def _through_unit(d_unit, unit, inverse_norm):
        """Gradient for the rows themselves: what is left across each row, divided by its length."""
        if inverse_norm is None:
            return d_unit
        radial = mx.nd.sum(d_unit * unit, axis=1, keepdims=True)
        return mx.nd.broadcast_mul(d_unit - mx.nd.broadcast_mul(unit, radial), inverse_norm)

    def _measures(self, statistics, embedding):
        """What the head has of the measures of a step: see ParallModule.train_step. No collectives."""
        measures = {'accuracy': statistics.accuracy(), 'embedding_norm': mx.nd.mean(lengths(embedding))}
        norms = [shard.center_norms() for shard in self.shards]
        sums = [mx.nd.sum(norm).as_in_context(embedding.context) for norm in norms if norm is not None]
        if sums:
            count = sum(norm.size for norm in norms if norm is not None)
            measures['center_norm'] = mx.nd.add_n(*sums) / count
        if self.margin is not None:
            measures['own_cosine'], measures['other_cosine'] = statistics.cosines(self.margin.scale)
        return measures

    def _merge(self, parts, context):
        own = mx.nd.stack(*[part.array.as_in_context(context) for part in parts], axis=0)   # (S, 4, N)
        return Statistics.merge(self.collective.allgather(own, 'head_statistics'))


def of_part(part, num_parts, lr, momentum, wd):
    """(lr, momentum, wd, moves) of ClassBlock.update. The first part of a step slows v and adds the weight decay, each
    adds its gradient, the last one moves w: v <- momentum v - lr (g_1 + ... + g_P + wd w), w <- w + v."""
    first, last = part == 0, part == num_parts - 1
    return lr, momentum if first else 1.0, wd if first else 0.0, last


def sum_on(like, arrays):
    """Sum of the arrays that are not None; zeros if there are none. Shape and context are those of `like`."""
    parts = [array.as_in_context(like.context) for array in arrays if array is not None]
    return mx.nd.add_n(*parts) if parts else mx.nd.zeros_like(like)


def lengths(rows):
    """Lengths (n, 1) of rows (n, D)."""
    return mx.nd.sqrt(mx.nd.sum(mx.nd.square(rows), axis=1, keepdims=True))


class ParallModule:
    """Backbone and head: one step is one update of both."""

    def __init__(self, backbone, head, solver, freeze_backbone=0):
        """solver: SolverOptions. The backbone's own optimizer is initialised already.

        freeze_backbone: steps 1 to this one train the head alone; the backbone computes as in inference (batch norm
        by its running statistics, no dropout), and nothing of it changes.
        """
        self.backbone, self.head, self.solver = backbone, head, solver
        self.num_update, self.freeze_backbone = 0, freeze_backbone

    @property
    def lr(self):
        """Learning rate of the last update."""
        return self.solver.schedule(max(1, self.num_update))

    def train_step(self, batch, measure=False):
        """batch: data [images (B, 3, H, W) uint8], label [(B,) int64] -> Statistics of the global batch.

        Both lists may have several members, the parts of a step: gradients are summed over them, then one update is
        made, as of one batch of all rows; batch norm takes its statistics over a part. Measures are of the last part.

        With measure they have these measures, (1,) arrays that nobody waits for here:

        accuracy                    share of the N rows whose own center is the nearest
        own_cosine, other_cosine    mean over the N rows; not with loss softmax, whose logits are no cosines
        embedding_norm              mean length of this process's embeddings
        center_norm                 mean length of the centers of this process that take part in the step
        gradient_norm               length of the gradient of all parameters of the backbone, summed over devices and
                                    processes, without loss scale; not while the backbone is frozen
        """
        self.num_update += 1
        trains_backbone = self.num_update > self.freeze_backbone
        labels = np.stack([part.asnumpy() for part in batch.label])                # (P, B)
        found = []
        for part, images in enumerate(batch.data):
            self.backbone.seed_dropout(self.num_update, part, len(labels))
            embedding = self.backbone.forward(images, trains_backbone)             # (B, D)
            statistics, d_embedding = self.head.forward_backward(
                embedding, labels, self.solver.for_head(self.num_update), measure and part == len(labels) - 1,
                self.num_update, part)
            found.append(statistics)
            if trains_backbone:
                self.backbone.backward(d_embedding, part == 0)
        statistics = Statistics.joined(found)
        if trains_backbone:
            norm = self.backbone.update(self.num_update, measure)
            if measure:
                statistics.measures['gradient_norm'] = norm
        return statistics
