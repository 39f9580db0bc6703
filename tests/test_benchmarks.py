"""What the benchmarks compare must be the same computation."""
import numpy as np
import pytest

from benchmarks.usual_head import UsualHead
from common.mxnet_loader import mx
from recognition.class_block import ClassBlock
from recognition.collective import LocalCollective
from recognition.head import HeadShard
from recognition.margin import Margin
from recognition.parall_module import Head
from recognition.sampling import Sampler
from recognition.sharding import shard_range

SOLVER = (0.1, 0.9, 5e-4)


@pytest.mark.parametrize('num_shards', [1, 3])
def test_the_usual_head_computes_what_ours_does(num_shards):
    rng = np.random.RandomState(0)
    contexts = [mx.cpu(device) for device in range(num_shards)]
    edges = [shard_range(40, shard, num_shards) for shard in range(num_shards)]
    usual = UsualHead(mx, edges, 16, contexts)
    shards = []
    for part, (start, stop), context in zip(usual.shards, edges, contexts):
        block = ClassBlock(start, stop, part.weight.detach().copy(), part.momentum.copy())
        shards.append(HeadShard([block], context, Margin(1, 0.5, 0, scale=16.0), Sampler(1.0, 0)))
    ours = Head(shards, 40, LocalCollective())
    for _ in range(3):
        embedding = mx.nd.array(rng.randn(8, 16))
        labels = rng.randint(0, 40, 8)
        loss, d_embedding = usual.step(embedding, mx.nd.array(labels), SOLVER, scale=16.0)
        statistics, expected = ours.forward_backward(embedding, labels, SOLVER)
        np.testing.assert_allclose(loss.asnumpy(), statistics.loss().asnumpy(), rtol=1e-4)
        np.testing.assert_allclose(d_embedding.asnumpy(), expected.asnumpy(), rtol=1e-3, atol=1e-5)
    for part, shard in zip(usual.shards, ours.shards):
        np.testing.assert_allclose(part.weight.asnumpy(), shard.blocks[0].weight.asnumpy(), rtol=1e-3, atol=1e-5)
