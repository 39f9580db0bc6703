"""The sharded, block-wise float32 head against the dense float64 twin."""
import numpy as np
import pytest

from common.mxnet_loader import mx
from recognition.class_block import ClassBlock, initial_centers
from recognition.collective import LocalCollective
from recognition.head import HeadShard
from recognition.margin import Margin
from recognition.parall_module import Head
from recognition.sampling import Sampler
from tests.reference import DenseHead, numeric_gradient

LOSSES = {'softmax': None, 'nsoftmax': (1, 0, 0), 'arcface': (1, 0.5, 0), 'cosface': (1, 0, 0.35),
          'combined': (1, 0.3, 0.2)}
D = 32
SOLVER = (0.1, 0.9, 5e-4)     # lr, momentum, wd


def build(loss, num_classes, num_shards, keep_logits=True, block_size=7, with_bias=None, seed=3, scale=64.0,
          sample_ratio=1.0, **options):
    margins = LOSSES[loss]
    return Head.initial(num_classes, D, [mx.cpu(device) for device in range(num_shards)],
                        None if margins is None else Margin(*margins, scale=scale), seed, LocalCollective(),
                        block_size=block_size, keep_logits=keep_logits, sample_ratio=sample_ratio,
                        with_bias=margins is None if with_bias is None else with_bias, **options)


def whole(head, name):
    """One kind of array of all blocks by class, float64."""
    parts = [block.rows(name) for shard in head.shards for block in shard.blocks]
    return np.concatenate(parts).astype(np.float64)


def dense(head, loss, scale=64.0, interclass_filter=0.0):
    """The float64 twin in the head's present state."""
    twin = DenseHead(whole(head, 'centers'), LOSSES[loss], scale,
                     whole(head, 'bias') if 'bias' in head.shards[0].blocks[0].arrays() else None, interclass_filter)
    twin.momentum = whole(head, 'momentum')
    if twin.bias is not None:
        twin.bias_momentum = whole(head, 'bias_momentum')
    return twin


def assert_close(ours, truth, tolerance=1e-5):
    """Relative to the largest entry."""
    assert np.abs(ours - truth).max() <= tolerance * np.abs(truth).max()


def check_step(head, loss, embedding, labels, interclass_filter=0.0):
    """One step of ours beside one of the twin, from the same state.

    1e-5 while the loss is at least 1. Below that, 1 - probability is a small difference of float32 numbers
    and no float32 head, however written, can hold more of it.
    """
    twin = dense(head, loss, interclass_filter=interclass_filter)
    statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, measure=True)
    expected_loss, expected_gradient = twin.step(embedding, labels, *SOLVER)
    tolerance = 1e-5 / min(1.0, expected_loss)
    assert_close(statistics.loss().asnumpy(), np.array([expected_loss]), tolerance)
    assert_close(d_embedding.asnumpy(), expected_gradient, tolerance)
    for name in head.shards[0].blocks[0].arrays():
        assert_close(whole(head, name), getattr(twin, name), tolerance)


def random_batch(rng, num_rows, num_classes):
    return rng.randn(num_rows, D).astype(np.float32), rng.randint(0, num_classes, num_rows).astype(np.int64)


@pytest.mark.parametrize('keep_logits', [True, False], ids=['fast', 'lean'])
@pytest.mark.parametrize('num_shards', [1, 2, 3, 4])
@pytest.mark.parametrize('loss', LOSSES)
def test_head_equals_the_dense_twin(loss, num_shards, keep_logits):
    rng = np.random.RandomState(7)
    head = build(loss, 53, num_shards, keep_logits)
    for _ in range(3):
        check_step(head, loss, *random_batch(rng, 24, 53))


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('num_classes, num_shards, labels', [
    (10, 4, [0, 9, 3, 3, 5]),             # uneven
    (3, 4, [0, 2, 1, 2]),                 # a shard without classes
    (40, 4, [1, 2, 3, 4, 5]),             # all targets on one shard
    (40, 3, [17] * 6),                    # one label many times
    (11, 2, [10]),                        # one image
    (1, 2, [0, 0]),                       # one class
], ids=['uneven', 'empty shard', 'one shard', 'repeated', 'batch 1', 'one class'])
def test_awkward_shapes(loss, num_classes, num_shards, labels):
    rng = np.random.RandomState(1)
    head = build(loss, num_classes, num_shards)
    for _ in range(2):
        embedding = rng.randn(len(labels), D).astype(np.float32)
        if num_classes == 1:                # nothing to learn: every gradient is 0, and rounding is all there is
            statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), np.array(labels), SOLVER)
            assert abs(statistics.loss().asscalar()) < 1e-5
            assert np.abs(d_embedding.asnumpy()).max() < 1e-5
        else:
            check_step(head, loss, embedding, np.array(labels, np.int64))


@pytest.mark.parametrize('length', [1e-6, 1.0, 1e6])
@pytest.mark.parametrize('keep_logits', [True, False], ids=['fast', 'lean'])
@pytest.mark.parametrize('loss', ['arcface', 'cosface', 'softmax'])
def test_a_label_counts_fully_where_its_block_has_no_share_of_the_softmax(loss, keep_logits, length):
    """Each row lies near a center of the first block, its label is opposite in another: exp(-109) is 0 in float32."""
    rng = np.random.RandomState(4)
    head = build(loss, 28, 2, keep_logits)
    embedding = rng.randn(4, D).astype(np.float32)
    if loss == 'softmax':
        embedding *= 3.0                                   # inner products of about 9 * 32
    for number, shard in enumerate(head.shards):
        for block in shard.blocks:
            centers = (1 if number == 0 else -1) * embedding[np.arange(7) % 4] + 0.6 * rng.randn(7, D)
            block.weight[:] = mx.nd.array((length if loss != 'softmax' else 1.0) * centers)
    check_step(head, loss, embedding, np.array([14, 15, 16, 24], np.int64))


@pytest.mark.parametrize('keep_logits', [True, False], ids=['fast', 'lean'])
@pytest.mark.parametrize('num_rows, block_size', [(256, 7), (1024, 7), (1024, 1000)])
def test_large_batches(num_rows, block_size, keep_logits):
    rng = np.random.RandomState(9)
    head = build('arcface', 53, 2, keep_logits, block_size=block_size)
    for _ in range(2):
        check_step(head, 'arcface', *random_batch(rng, num_rows, 53))


@pytest.mark.slow
def test_more_logits_than_an_array_can_hold():
    """2^31 + 1,024 logits of one shard: every center the same, so the loss is log C and only labels move theirs."""
    num_rows, num_classes, size = 1024, 2**21 + 1, 2**18
    edges = [(start, min(start + size, num_classes)) for start in range(0, num_classes, size)]
    blocks = [ClassBlock(start, stop, mx.nd.ones((stop - start, 4)), mx.nd.zeros((stop - start, 4)))
              for start, stop in edges]
    head = Head([HeadShard(blocks, mx.cpu(), Margin(), Sampler(1.0, 0), keep_logits=False)], num_classes,
                LocalCollective())
    embedding = np.random.RandomState(0).randn(num_rows, 4).astype(np.float32)
    labels = np.full(num_rows, num_classes - 1, np.int64)
    statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, (0.1, 0.0, 0.0))
    np.testing.assert_allclose(statistics.loss().asscalar(), np.log(num_classes), rtol=1e-5)
    assert np.abs(d_embedding.asnumpy()).max() < 1e-4
    moved = [np.abs(block.weight.asnumpy() - 1).max() for block in blocks]
    assert moved[-1] > 1e-3 > 1e-5 > max(moved[:-1])


@pytest.mark.parametrize('block_size', [1, 5, 53, 1000])
def test_block_size_does_not_matter(block_size):
    rng = np.random.RandomState(2)
    check_step(build('arcface', 53, 2, block_size=block_size), 'arcface', *random_batch(rng, 16, 53))


def test_softmax_without_bias():
    rng = np.random.RandomState(2)
    head = build('softmax', 30, 2, with_bias=False)
    assert set(head.shards[0].blocks[0].arrays()) == {'centers', 'momentum'}
    check_step(head, 'softmax', *random_batch(rng, 16, 30))


@pytest.mark.parametrize('margins', LOSSES.values(), ids=list(LOSSES))
def test_the_twin_has_the_right_gradients(margins):
    rng = np.random.RandomState(5)
    label, embedding, centers, bias = np.array([0, 3, 3]), rng.randn(3, 4), rng.randn(5, 4), rng.randn(5)

    def gradients(embedding, centers, bias):
        return DenseHead(centers, margins, 4.0, bias if margins is None else None).gradients(embedding, label)

    _, d_embedding, d_centers, d_bias = gradients(embedding, centers, bias)
    numeric = numeric_gradient(lambda x: gradients(x, centers, bias)[0], embedding)
    np.testing.assert_allclose(d_embedding, numeric, atol=1e-6)
    numeric = numeric_gradient(lambda x: gradients(embedding, x, bias)[0], centers)
    np.testing.assert_allclose(d_centers, numeric, atol=1e-6)
    if margins is None:
        numeric = numeric_gradient(lambda x: gradients(embedding, centers, x)[0], bias)
        np.testing.assert_allclose(d_bias, numeric, atol=1e-6)


@pytest.mark.parametrize('loss', LOSSES)
def test_accuracy_counts_rows_whose_plain_logit_is_largest(loss):
    rng = np.random.RandomState(4)
    head = build(loss, 20, 3)
    embedding, labels = random_batch(rng, 64, 20)
    nearest = (dense(head, 'nsoftmax' if LOSSES[loss] else 'softmax').logits(embedding, labels)[0]).argmax(axis=1)
    labels[:40] = nearest[:40]
    statistics, _ = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, measure=True)
    assert statistics.accuracy().asscalar() == pytest.approx((nearest == labels).mean(), abs=1e-6)


@pytest.mark.parametrize('num_shards', [1, 2, 3, 4])
def test_initial_centers_do_not_depend_on_the_shards(num_shards):
    head = build('arcface', 2500, num_shards, block_size=900)
    np.testing.assert_array_equal(whole(head, 'centers').astype(np.float32), initial_centers(3, 0, 2500, D))


def test_initial_centers_are_normal_and_follow_the_seed():
    centers = initial_centers(0, 0, 5000, 64)
    assert centers.std() == pytest.approx(0.01, rel=0.02) and abs(centers.mean()) < 1e-4
    assert (centers[:1024] != centers[1024:2048]).any()
    assert (centers != initial_centers(1, 0, 5000, 64)).any()
    np.testing.assert_array_equal(initial_centers(0, 1500, 1507, 64), centers[1500:1507])


@pytest.mark.parametrize('loss', LOSSES)
def test_finite_at_the_ends_of_the_cosine(loss):
    head = build(loss, 12, 2)
    centers = whole(head, 'centers').astype(np.float32)
    embedding = np.stack([centers[3] * 5000, -centers[4] * 5000, np.zeros(D, np.float32), centers[7]])
    first = head.shards[0].blocks[0]
    first.weight[1] = 0                               # a zero center
    labels = np.array([3, 4, 1, 1])
    for _ in range(3):
        statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, measure=True)
        assert np.isfinite(statistics.loss().asscalar())
        assert np.isfinite(d_embedding.asnumpy()).all()
        assert np.isfinite(whole(head, 'centers')).all() and np.isfinite(whole(head, 'momentum')).all()


def test_a_zero_embedding_gets_no_gradient():
    head = build('arcface', 12, 2)
    embedding = np.random.RandomState(0).randn(3, D).astype(np.float32)
    embedding[1] = 0
    _, d_embedding = head.forward_backward(mx.nd.array(embedding), np.array([1, 2, 3]), SOLVER)
    assert (d_embedding.asnumpy()[1] == 0).all() and (d_embedding.asnumpy()[0] != 0).any()


def test_large_embeddings_do_not_overflow():
    head = build('arcface', 12, 2)
    embedding = 1e4 * np.random.RandomState(0).randn(3, D).astype(np.float32)
    check_step(head, 'arcface', embedding, np.array([1, 2, 3]))


def test_the_batch_may_change_its_size_between_steps():
    rng = np.random.RandomState(0)
    head = build('cosface', 31, 2)
    for num_rows in (8, 3, 8):
        check_step(head, 'cosface', *random_batch(rng, num_rows, 31))


def test_two_hundred_steps_of_an_easy_problem_converge():
    rng = np.random.RandomState(0)
    head = build('nsoftmax', 6, 2, scale=16.0)
    directions = np.eye(6, D, dtype=np.float32) * 10
    for step in range(200):
        labels = rng.randint(0, 6, 12)
        noisy = directions[labels] + 0.1 * rng.randn(12, D).astype(np.float32)
        statistics, _ = head.forward_backward(mx.nd.array(noisy), labels, SOLVER, measure=True)
        assert np.isfinite(statistics.loss().asscalar()), step
    assert statistics.accuracy().asscalar() == 1.0 and statistics.loss().asscalar() < 0.1


def picked_classes(head, labels, num_update):
    """Sorted ids of the classes that a step samples, over all shards."""
    parts = []
    for shard in head.shards:
        for block in shard.blocks:
            own = labels[(labels >= block.start) & (labels < block.stop)] - block.start
            parts.append(block.start + shard.sampler.pick(own, block.start, block.stop - block.start, num_update))
    return np.concatenate(parts)


@pytest.mark.parametrize('keep_logits', [True, False], ids=['fast', 'lean'])
@pytest.mark.parametrize('ratio', [0.05, 0.3, 0.9])
@pytest.mark.parametrize('loss', LOSSES)
def test_a_sampled_step_is_the_dense_step_on_the_picked_classes(loss, ratio, keep_logits):
    rng = np.random.RandomState(8)
    head = build(loss, 60, 3, keep_logits, sample_ratio=ratio)
    for num_update in range(1, 4):
        check_sampled_step(head, loss, *random_batch(rng, 10, 60), num_update)


def check_sampled_step(head, loss, embedding, labels, num_update, interclass_filter=0.0):
    """One step of ours beside one of the twin that knows the picked classes only."""
    picked, before = picked_classes(head, labels, num_update), dense(head, loss)
    twin = DenseHead(before.centers[picked], LOSSES[loss], 64.0,
                     None if before.bias is None else before.bias[picked], interclass_filter)
    twin.momentum = before.momentum[picked]
    if twin.bias is not None:
        twin.bias_momentum = before.bias_momentum[picked]
    expected_loss, expected_gradient = twin.step(embedding, np.searchsorted(picked, labels), *SOLVER)
    statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, True, num_update)
    tolerance = 1e-5 / min(1.0, expected_loss)
    assert_close(statistics.loss().asnumpy(), np.array([expected_loss]), tolerance)
    assert_close(d_embedding.asnumpy(), expected_gradient, tolerance)
    untouched = np.setdiff1d(np.arange(head.num_classes), picked)
    for name in head.shards[0].blocks[0].arrays():
        after = whole(head, name)
        assert_close(after[picked], getattr(twin, name), tolerance)
        np.testing.assert_array_equal(after[untouched], getattr(before, name)[untouched])


def test_the_whole_sample_is_the_full_head_bit_by_bit():
    rng = np.random.RandomState(8)
    full, sampled = build('arcface', 60, 2), build('arcface', 60, 2, sample_ratio=0.99999)
    for num_update in range(1, 4):
        embedding, labels = random_batch(rng, 10, 60)
        results = [head.forward_backward(mx.nd.array(embedding), labels, SOLVER, True, num_update)
                   for head in (full, sampled)]
        np.testing.assert_array_equal(*[statistics.array.asnumpy() for statistics, _ in results])
        np.testing.assert_array_equal(*[gradient.asnumpy() for _, gradient in results])
    for name in ('centers', 'momentum'):
        np.testing.assert_array_equal(whole(full, name), whole(sampled, name))


@pytest.mark.parametrize('labels', [[16777217, 19999999, 16777216, 0], [19999999] * 4])
def test_class_ids_beyond_float32_reach_their_centers(labels):
    """20 million classes, two shards: exactly the classes of the batch learn from a positive label."""
    num_classes, labels = 20000000, np.array(labels, np.int64)
    shards = []
    for shard, context in enumerate([mx.cpu(0), mx.cpu(1)]):
        start = shard * num_classes // 2
        blocks = [ClassBlock(first, first + 500000, mx.nd.ones((500000, 4), ctx=context),
                             mx.nd.zeros((500000, 4), ctx=context)) for first in range(start, start + 10000000, 500000)]
        shards.append(HeadShard(blocks, context, Margin(1, 0.5, 0), Sampler(0.001, 0), keep_logits=False))
    head = Head(shards, num_classes, LocalCollective())
    embedding = np.random.RandomState(0).randn(4, 4).astype(np.float32)
    head.forward_backward(mx.nd.array(embedding), labels, (0.1, 0.0, 0.0), num_update=1)
    picked = picked_classes(head, labels, 1)
    assert set(labels) <= set(picked)
    for label in set(labels):
        block = [block for shard in shards for block in shard.blocks if block.start <= label < block.stop][0]
        moved = (block.weight[int(label - block.start)] - 1).asnumpy()
        pull = sum(embedding[row] / np.linalg.norm(embedding[row]) for row in np.flatnonzero(labels == label))
        tangent = pull - pull.mean()                  # what of it lies across the center (1, 1, 1, 1)
        assert np.dot(moved, tangent) > 0.9 * np.linalg.norm(moved) * np.linalg.norm(tangent), label
