"""The classification layer as it is usually written, to compare with: whole matrices, one-hot masks, autograd.

N global batch, C_s classes of a shard, D embedding size. Written for this benchmark from the textbook formulas.
"""


class UsualShard:
    """Centers, momentum and gradient (C_s, D) each, float32, and several (N, C_s) matrices while a step runs."""

    def __init__(self, mx, first_class, num_classes, embedding_size, context):
        self.mx, self.first_class, self.num_classes, self.context = mx, first_class, num_classes, context
        self.weight = mx.nd.random.normal(0, 0.01, (num_classes, embedding_size), ctx=context)
        self.momentum = mx.nd.zeros_like(self.weight)
        self.weight.attach_grad()

    def forward(self, unit, label, scale, margin):
        """unit (N, D), label (N,) of all classes -> exp sums (N,); the graph is kept."""
        mx = self.mx
        self.unit = unit.as_in_context(self.context)
        self.unit.attach_grad()
        self.one_hot = mx.nd.one_hot(label.as_in_context(self.context) - self.first_class, self.num_classes)
        with mx.autograd.record():
            direction = mx.nd.L2Normalization(self.weight, mode='instance')
            cosine = mx.nd.FullyConnected(self.unit, direction, num_hidden=self.num_classes, no_bias=True)
            angle = mx.nd.arccos(mx.nd.clip(cosine, -1 + 1e-6, 1 - 1e-6))
            self.logits = scale * mx.nd.cos(angle + margin * self.one_hot)
        self.exponents = mx.nd.exp(self.logits - scale)
        return mx.nd.sum(self.exponents, axis=1)

    def backward(self, total, solver):
        """total (N,) exp sums over all classes -> d loss / d unit (N, D); the centers are updated."""
        lr, momentum, wd = solver
        probability = self.mx.nd.broadcast_div(self.exponents, total.as_in_context(self.context).reshape((-1, 1)))
        self.logits.backward((probability - self.one_hot) / len(total))
        self.mx.nd.sgd_mom_update(self.weight, self.weight.grad, self.momentum, lr=lr, momentum=momentum, wd=wd,
                                  out=self.weight)
        return self.unit.grad


class UsualHead:
    """All shards: softmax over the sum of their exp sums."""

    def __init__(self, mx, edges, embedding_size, contexts):
        """edges: per shard its half-open range of classes."""
        self.mx = mx
        self.shards = [UsualShard(mx, start, stop - start, embedding_size, context)
                       for (start, stop), context in zip(edges, contexts)]

    def step(self, embedding, label, solver, scale=64.0, margin=0.5):
        """embedding (N, D), label (N,) NDArray -> loss (1,) and d_embedding (N, D)."""
        mx = self.mx
        embedding = embedding.copy()
        embedding.attach_grad()
        with mx.autograd.record():
            unit = mx.nd.L2Normalization(embedding, mode='instance')
        sums = [shard.forward(unit.detach(), label, scale, margin) for shard in self.shards]
        total = mx.nd.add_n(*[part.as_in_context(embedding.context) for part in sums])
        parts = [shard.backward(total, solver) for shard in self.shards]
        unit.backward(mx.nd.add_n(*[part.as_in_context(embedding.context) for part in parts]))
        target = mx.nd.add_n(*[mx.nd.sum(shard.logits * shard.one_hot, axis=1).as_in_context(embedding.context)
                               for shard in self.shards])
        return mx.nd.mean(mx.nd.log(total) + scale - target), embedding.grad

