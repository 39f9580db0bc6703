"""Several centers per class, and negatives that are left out, against the dense float64 twin and by hand."""
import functools

import numpy as np
import pytest

from common.mxnet_loader import mx
from recognition.class_block import initial_centers
from recognition.product import HalfProduct
from tests.reference import DenseHead, numeric_gradient
from tests.test_head import (
    LOSSES,
    SOLVER,
    D,
    assert_close,
    build,
    check_sampled_step,
    check_step,
    dense,
    random_batch,
    whole,
)

LR, MOMENTUM, WD = SOLVER
VARIANTS = {'2 centers': {'sub_centers': 2}, '3 centers': {'sub_centers': 3}, 'filter': {'interclass_filter': 0.3},
            '3 centers, filter': {'sub_centers': 3, 'interclass_filter': 0.4}}
each_loss = pytest.mark.parametrize('loss', LOSSES)
each_variant = pytest.mark.parametrize('options', VARIANTS.values(), ids=list(VARIANTS))
fast_and_lean = pytest.mark.parametrize('keep_logits', [True, False], ids=['fast', 'lean'])


@pytest.mark.parametrize('num_shards, keep_logits', [(1, True), (1, False), (2, False), (3, True), (4, False)])
@each_variant
@each_loss
def test_a_step_equals_the_dense_twin(loss, options, num_shards, keep_logits):
    rng = np.random.RandomState(7)
    head = build(loss, 53, num_shards, keep_logits, **options)
    for _ in range(2):
        check_step(head, loss, *random_batch(rng, 24, 53), options.get('interclass_filter', 0.0))


@fast_and_lean
@pytest.mark.parametrize('ratio', [0.05, 0.4])
@each_variant
@each_loss
def test_a_sampled_step_equals_the_dense_twin(loss, options, ratio, keep_logits):
    rng = np.random.RandomState(8)
    head = build(loss, 60, 3, keep_logits, sample_ratio=ratio, **options)
    for num_update in range(1, 3):
        check_sampled_step(head, loss, *random_batch(rng, 10, 60), num_update, options.get('interclass_filter', 0.0))


@pytest.mark.parametrize('num_classes, num_shards, labels', [
    (10, 4, [0, 9, 3, 3, 5]), (3, 4, [0, 2, 1, 2]), (40, 4, [1, 2, 3, 4, 5]), (40, 3, [17] * 6), (11, 2, [10]),
], ids=['uneven', 'empty shard', 'one shard', 'repeated', 'batch 1'])
@each_loss
def test_awkward_shapes(loss, num_classes, num_shards, labels):
    rng = np.random.RandomState(1)
    head = build(loss, num_classes, num_shards, sub_centers=3, interclass_filter=0.4)
    for _ in range(2):
        check_step(head, loss, rng.randn(len(labels), D).astype(np.float32), np.array(labels, np.int64), 0.4)


def test_the_batch_may_change_its_size_between_steps():
    rng = np.random.RandomState(0)
    head = build('cosface', 31, 2, sub_centers=3, interclass_filter=0.4)
    for num_rows in (8, 3, 8):
        check_step(head, 'cosface', *random_batch(rng, num_rows, 31), 0.4)


@pytest.mark.parametrize('sub_centers, interclass_filter', [(1, 0.2), (3, 0.0), (3, 0.2)])
@pytest.mark.parametrize('margins', LOSSES.values(), ids=list(LOSSES))
def test_the_twin_has_the_right_gradients(margins, sub_centers, interclass_filter):
    rng = np.random.RandomState(5)
    label, embedding, bias = np.array([0, 3, 3]), rng.randn(3, 4), rng.randn(5)
    centers = rng.randn(*(5, 4) if sub_centers == 1 else (5, sub_centers, 4))

    def gradients(embedding, centers, bias):
        twin = DenseHead(centers, margins, 4.0, None if margins else bias, interclass_filter)
        return twin.gradients(embedding, label)

    _, d_embedding, d_centers, d_bias = gradients(embedding, centers, bias)
    numeric = numeric_gradient(lambda x: gradients(x, centers, bias)[0], embedding)
    np.testing.assert_allclose(d_embedding, numeric, atol=1e-6)
    numeric = numeric_gradient(lambda x: gradients(embedding, x, bias)[0], centers)
    np.testing.assert_allclose(d_centers, numeric, atol=1e-6)
    if margins is None:
        numeric = numeric_gradient(lambda x: gradients(embedding, centers, x)[0], bias)
        np.testing.assert_allclose(d_bias, numeric, atol=1e-6)


@fast_and_lean
def test_half_products_with_several_centers(keep_logits):
    """Within the rounding of float16, relative to the largest entry."""
    rng = np.random.RandomState(7)
    head = build('arcface', 53, 2, keep_logits, sub_centers=3, interclass_filter=0.4,
                 product=functools.partial(HalfProduct, native=False))
    embedding, labels = random_batch(rng, 24, 53)
    twin = dense(head, 'arcface', interclass_filter=0.4)
    statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, SOLVER)
    expected_loss, expected_gradient = twin.step(embedding, labels, *SOLVER)
    assert_close(statistics.loss().asnumpy(), np.array([expected_loss]), 5e-3)
    assert_close(d_embedding.asnumpy(), expected_gradient, 5e-3)
    assert_close(whole(head, 'momentum'), twin.momentum, 5e-3)


def planar(centers, **options):
    """A head of loss nsoftmax, s = 2, with these centers (C, J, 2) or (C, 2), followed by zeros."""
    centers = np.array(centers, np.float32)
    head = build('nsoftmax', len(centers), 1, scale=2.0, block_size=2, **options)
    for block in head.shards[0].blocks:
        block.set_rows('centers', np.pad(centers[block.start:block.stop], [(0, 0)] * (centers.ndim - 1) + [(0, D - 2)]))
    return head


def step(head, row, label, measure=False):
    """One row (2,), followed by zeros -> Statistics, d_embedding (D,)."""
    embedding = mx.nd.array(np.pad(np.array([row], np.float32), [(0, 0), (0, D - 2)]))
    statistics, d_embedding = head.forward_backward(embedding, np.array([label]), SOLVER, measure)
    return statistics, d_embedding.asnumpy()[0]


@fast_and_lean
@pytest.mark.parametrize('interclass_filter, others', [(0.0, [0.96, 0.0, -1.0]), (0.95, [0.0, -1.0]),
                                                       (0.97, [0.96, 0.0, -1.0])])
def test_a_negative_above_the_threshold_does_not_count(interclass_filter, others, keep_logits):
    """Cosines of the row with classes 0 to 3: 0.6 (its own), 0.96, 0, -1."""
    head = planar([[0.6, 0.8], [0.96, -0.28], [0, 3], [-2, 0]], interclass_filter=interclass_filter,
                  keep_logits=keep_logits)
    before = whole(head, 'centers')
    statistics, _ = step(head, [5, 0], 0, measure=True)
    expected = np.log(np.exp(2.0 * np.array([0.6] + others)).sum()) - 1.2
    assert statistics.loss().asscalar() == pytest.approx(expected, rel=2e-5)
    assert statistics.accuracy().asscalar() == (0.96 not in others)        # what is left out does not count here either
    gradient = whole(head, 'momentum') / -LR - WD * before
    assert (np.abs(gradient[1]).max() > 1e-3) == (0.96 in others)
    if 0.96 not in others:
        np.testing.assert_allclose(gradient[1], 0, atol=1e-9)


@pytest.mark.parametrize('threshold', [0.5, 0.7])
def test_a_label_above_the_threshold_counts(threshold):
    """Cosines: 0.6 its own, 0 the other."""
    statistics, d_embedding = step(planar([[0.6, 0.8], [0, 1]], interclass_filter=threshold), [1, 0], 0)
    assert statistics.loss().asscalar() == pytest.approx(np.log(1 + np.exp(-1.2)), rel=2e-5)
    assert np.abs(d_embedding).max() > 0.05


@fast_and_lean
@each_loss
@pytest.mark.parametrize('sub_centers', [1, 2])
def test_a_block_of_which_everything_is_left_out(loss, sub_centers, keep_logits):
    """All rows lie near all centers of the first block; their labels are in the second."""
    rng = np.random.RandomState(4)
    head = build(loss, 14, 1, keep_logits, sub_centers=sub_centers, interclass_filter=0.5)
    direction = rng.randn(D)
    first = head.shards[0].blocks[0]
    first.weight[:] = mx.nd.array(direction + 0.1 * rng.randn(*first.weight.shape))
    embedding = (direction + 0.1 * rng.randn(5, D)).astype(np.float32)
    check_step(head, loss, embedding, np.array([7, 8, 9, 9, 13]), 0.5)


@fast_and_lean
def test_the_nearest_center_counts_and_alone_learns(keep_logits):
    """Cosines of the row with the two centers of the classes: 0.6 and 0.8; -1 and 0."""
    head = planar([[[0.6, 0.8], [4, 3]], [[-1, 0], [0, 5]]], sub_centers=2, keep_logits=keep_logits)
    before = whole(head, 'centers')
    statistics, _ = step(head, [5, 0], 0)
    assert statistics.loss().asscalar() == pytest.approx(np.log(1 + np.exp(-1.6)), rel=2e-5)
    gradient = whole(head, 'momentum') / -LR - WD * before
    probability = 1 / (1 + np.exp(-1.6))
    # d loss / d w = (p - 1) s (x^ - cos w^) / |w|, with |w| = 5, cos = 0.8 and x^ - cos w^ = (0.36, -0.48)
    np.testing.assert_allclose(gradient[0, 1, :2], (probability - 1) * 2 * np.array([0.36, -0.48]) / 5, atol=1e-6)
    np.testing.assert_allclose(gradient[0, 0], 0, atol=1e-9)
    np.testing.assert_allclose(gradient[1, 0], 0, atol=1e-9)
    np.testing.assert_allclose(gradient[1, 1, :2], (1 - probability) * 2 * np.array([1, 0]) / 5, atol=1e-6)


@fast_and_lean
@pytest.mark.parametrize('nearest', range(5))
def test_each_of_many_centers_can_win(nearest, keep_logits):
    """Cosines of the row with the centers of its class: 0.6 with one, -1 with the others."""
    centers = np.array([[[-1, 0]] * 5] * 2, np.float32)
    centers[0, nearest] = 0.6, 0.8
    head = planar(centers, sub_centers=5, keep_logits=keep_logits)
    before = whole(head, 'centers')
    step(head, [1, 0], 0)
    learned = np.abs(whole(head, 'momentum') / -LR - WD * before).max(axis=2)[0] > 1e-3
    assert learned.tolist() == [number == nearest for number in range(5)]


def test_of_equal_centers_the_first_learns():
    head = planar([[[0, 1], [0.6, 0.8], [0.6, 0.8]], [[-1, 0], [-1, 0], [0, -1]]], sub_centers=3)
    before = whole(head, 'centers')
    step(head, [1, 0], 0)
    learned = np.abs(whole(head, 'momentum') / -LR - WD * before).max(axis=2) > 1e-3
    assert learned.tolist() == [[False, True, False], [False, False, True]]


@pytest.mark.parametrize('num_shards', [1, 2, 3, 4])
def test_initial_centers_do_not_depend_on_the_shards(num_shards):
    head = build('arcface', 2500, num_shards, block_size=900, sub_centers=3)
    centers = whole(head, 'centers').astype(np.float32)
    assert centers.shape == (2500, 3, D)
    for number in range(3):
        np.testing.assert_array_equal(centers[:, number], initial_centers(3, 0, 2500, D, number))
    np.testing.assert_array_equal(centers[:, 0], initial_centers(3, 0, 2500, D))
    correlations = np.corrcoef(centers.swapaxes(0, 1).reshape(3, -1))
    assert np.abs(correlations - np.eye(3)).max() < 0.02


def test_a_zero_center_gets_no_gradient_and_everything_stays_finite():
    head = build('arcface', 12, 2, sub_centers=2, interclass_filter=0.5)
    head.shards[0].blocks[0].weight[:] = 0
    embedding = np.random.RandomState(0).randn(4, D).astype(np.float32)
    embedding[1] = 0
    for _ in range(3):
        statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), np.array([0, 1, 2, 7]), SOLVER, True)
        assert np.isfinite(statistics.loss().asscalar()) and np.isfinite(d_embedding.asnumpy()).all()
    assert np.isfinite(whole(head, 'centers')).all()
    assert (head.shards[0].blocks[0].weight.asnumpy() == 0).all()


def test_two_centers_part_an_identity_of_two_kinds_of_images():
    """Half of the images of each identity lie opposite the others: one center fits one half at most, two fit both."""
    rng, losses = np.random.RandomState(0), {}
    kinds = 10 * np.eye(6, D, dtype=np.float32)[:, None] * np.array([[1], [-1]])
    for sub_centers in (1, 2):
        head = build('nsoftmax', 6, 2, scale=16.0, sub_centers=sub_centers)
        for _ in range(200):
            labels = rng.randint(0, 6, 24)
            rows = kinds[labels, rng.randint(0, 2, 24)] + 0.1 * rng.randn(24, D)
            statistics, _ = head.forward_backward(mx.nd.array(rows, dtype='float32'), labels, SOLVER)
        losses[sub_centers] = float(statistics.loss().asscalar())
    assert losses[2] < 0.1 < 1 < losses[1]


@fast_and_lean
def test_scratch_of_a_step_is_used_again(keep_logits):
    """Two heads in one process, steps taken in turns: neither disturbs the other."""
    rng = np.random.RandomState(3)
    heads = [build('arcface', 20, 2, keep_logits, sub_centers=count, interclass_filter=0.5) for count in (2, 3, 2)]
    for _ in range(2):
        batch = random_batch(rng, 8, 20)
        for head in heads:
            check_step(head, 'arcface', *batch, 0.5)
    assert_close(whole(heads[0], 'centers'), whole(heads[2], 'centers'), 0)
