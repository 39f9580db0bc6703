"""Label smoothing over classes that are cut into shards and blocks, against the dense float64 twin."""
import functools

import numpy as np
import pytest

from common.errors import UsageError
from common.mxnet_loader import mx
from recognition.margin import AdaFaceMargin
from recognition.product import HalfProduct
from recognition.settings import complete, defaults
from tests.reference import DenseHead, adaface, numeric_gradient
from tests.test_head import LOSSES, SOLVER, D, assert_close, build, dense, random_batch, whole
from tests.tiny import TinyIter, tiny_module

fast_and_lean = pytest.mark.parametrize('keep_logits', [True, False], ids=['fast', 'lean'])
each_loss = pytest.mark.parametrize('loss', LOSSES)


def smoothed(loss, *args, label_smoothing=0.1, **options):
    return build(loss, *args, label_smoothing=label_smoothing, **options)


def check_step(head, twin, embedding, labels, tolerance=1e-5):
    twin.label_smoothing = 1.0 - head.shards[0].smoothing.own
    statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, measure=True)
    expected_loss, expected_gradient = twin.step(embedding, labels, *SOLVER)
    assert_close(statistics.loss().asnumpy(), np.array([expected_loss]), tolerance)
    assert_close(d_embedding.asnumpy(), expected_gradient, tolerance)
    for name in head.shards[0].blocks[0].arrays():
        assert_close(whole(head, name), getattr(twin, name), tolerance)


@fast_and_lean
@pytest.mark.parametrize('num_shards', [1, 2, 3, 4])
@each_loss
def test_head_equals_the_dense_twin(loss, num_shards, keep_logits):
    rng, head = np.random.RandomState(7), smoothed(loss, 53, num_shards, keep_logits)
    for _ in range(2):
        check_step(head, dense(head, loss), *random_batch(rng, 24, 53))


@pytest.mark.parametrize('share', [1e-3, 0.5, 0.9])
@pytest.mark.parametrize('num_classes, num_shards, labels', [
    (10, 4, [0, 9, 3, 3, 5]), (3, 4, [0, 2, 1, 2]), (40, 4, [1, 2, 3, 4, 5]), (40, 3, [17] * 6), (11, 2, [10]),
], ids=['uneven', 'empty shard', 'one shard', 'repeated', 'batch 1'])
@pytest.mark.parametrize('loss', ['softmax', 'arcface'])
def test_awkward_shapes(loss, num_classes, num_shards, labels, share):
    rng, head = np.random.RandomState(1), smoothed(loss, num_classes, num_shards, label_smoothing=share)
    for _ in range(2):
        check_step(head, dense(head, loss), rng.randn(len(labels), D).astype(np.float32), np.array(labels))


@fast_and_lean
@each_loss
def test_with_several_centers(loss, keep_logits):
    rng, head = np.random.RandomState(7), smoothed(loss, 53, 2, keep_logits, sub_centers=3)
    check_step(head, dense(head, loss), *random_batch(rng, 24, 53))


@pytest.mark.parametrize('product, tolerance', [(None, 1e-5), (functools.partial(HalfProduct, native=False), 1e-2)],
                         ids=['single', 'half'])
@fast_and_lean
def test_blocks_that_have_no_share_of_the_softmax(keep_logits, product, tolerance):
    """Each row lies near a center of the first block: of the others, whose part of the target counts in full, it has
    exp(-109)."""
    rng, options = np.random.RandomState(4), {} if product is None else {'product': product}
    head = smoothed('arcface', 28, 2, keep_logits, **options)
    embedding = rng.randn(4, D).astype(np.float32)
    for number, shard in enumerate(head.shards):
        for block in shard.blocks:
            centers = (1 if number == 0 else -1) * embedding[np.arange(7) % 4] + 0.6 * rng.randn(7, D)
            block.weight[:] = mx.nd.array(centers)
    check_step(head, dense(head, 'arcface'), embedding, np.array([14, 15, 16, 24]), tolerance)


def test_with_margins_of_rows():
    rng, head = np.random.RandomState(7), smoothed('nsoftmax', 53, 2)
    margin = AdaFaceMargin(momentum=0.1)
    for part in [head, *head.shards]:
        part.margin = margin
    embedding, labels = random_batch(rng, 24, 53)
    norms = np.linalg.norm(embedding.astype(np.float64), axis=1)
    twin = dense(head, 'nsoftmax')
    twin.margins = (1.0, *adaface(norms, [20, 100], 0.4, 0.333, 0.1)[:2])
    check_step(head, twin, embedding, labels)


@pytest.mark.parametrize('margins', LOSSES.values(), ids=list(LOSSES))
def test_the_twin_has_the_right_gradients(margins):
    rng = np.random.RandomState(5)
    label, embedding, centers, bias = np.array([0, 3, 3]), rng.randn(3, 4), rng.randn(5, 4), rng.randn(5)

    def gradients(embedding, centers):
        twin = DenseHead(centers, margins, 4.0, bias if margins is None else None)
        twin.label_smoothing = 0.3
        return twin.gradients(embedding, label)

    _, d_embedding, d_centers, _ = gradients(embedding, centers)
    np.testing.assert_allclose(d_embedding, numeric_gradient(lambda x: gradients(x, centers)[0], embedding), atol=1e-6)
    np.testing.assert_allclose(d_centers, numeric_gradient(lambda x: gradients(embedding, x)[0], centers), atol=1e-6)


def test_the_loss_of_a_target_spread_evenly_is_known():
    """All logits alike: log C, whatever the share."""
    head = smoothed('nsoftmax', 30, 3, label_smoothing=0.4)
    for block in (block for shard in head.shards for block in shard.blocks):
        block.weight[:] = 1.0
    statistics, _ = head.forward_backward(mx.nd.ones((4, D)), np.arange(4), SOLVER)
    assert statistics.loss().asscalar() == pytest.approx(np.log(30), rel=1e-5)


def test_a_training_does_not_depend_on_devices_and_learns():
    modules = tiny_module(1, label_smoothing=0.1), tiny_module(3, label_smoothing=0.1, keep_logits=False)
    losses = [[float(module.train_step(batch).loss().asscalar()) for batch in TinyIter(12, batches_per_epoch=20)]
              for module in modules]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < 0.9 * losses[0][0]


@pytest.mark.parametrize('other', [{'sample_ratio': 0.1}, {'interclass_filter': 0.4}])
def test_what_leaves_out_classes_is_refused(other):
    with pytest.raises(UsageError, match='label_smoothing needs the logits of all classes, which %s' % list(other)[0]):
        complete(dict(defaults(), label_smoothing=0.1, **other))
