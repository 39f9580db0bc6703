"""Products of half precision beside those of float32."""
import functools

import numpy as np
import pytest

from common.mxnet_loader import mx
from recognition.build import make_product
from recognition.product import LARGEST_HALF, Buffers, HalfProduct, Product
from recognition.settings import complete, defaults
from tests.test_head import LOSSES, SOLVER, build, dense, random_batch, whole

HALF = functools.partial(HalfProduct, native=False)
TOLERANCE = 3e-3           # of the largest number: three roundings to float16, 2^-11 each, and their sums
STEP_TOLERANCE = 1e-2      # a logit of 32 is rounded by up to 2^-6, so its probability by 1.6 percent


def to_half(head):
    for shard in head.shards:
        shard._product = HALF
    return head


def assert_near(ours, truth, tolerance=TOLERANCE):
    assert np.abs(ours - truth).max() <= tolerance * np.abs(truth).max()


def products(kind, x, weight, d_output, places=None):
    """(y, d_x, d_weight) as NumPy."""
    x, weight, d_output = mx.nd.array(x), mx.nd.array(weight), mx.nd.array(d_output)
    out, grads = mx.nd.empty(d_output.shape), [mx.nd.empty(x.shape), mx.nd.empty(weight.shape)]
    product = kind(x, weight, None, out, grads, Buffers(mx.cpu()))
    product.backward(d_output, None if places is None else mx.nd.array(places, dtype='int32'))
    return [array.asnumpy() for array in [out] + grads]


def test_half_products_are_those_of_float32_to_the_steps_of_float16():
    rng = np.random.RandomState(0)
    arrays = rng.randn(9, 40), 0.01 * rng.randn(30, 40), rng.rand(9, 30) / 30
    for half, single in zip(products(HALF, *arrays), products(Product, *arrays)):
        assert 0 < np.abs(half - single).max()                    # they are rounded
        assert_near(half, single)


def test_the_results_are_float16_numbers():
    rng = np.random.RandomState(0)
    for values in products(HALF, rng.randn(9, 40), 0.01 * rng.randn(30, 40), rng.rand(9, 30) / 30):
        mantissa = np.frexp(values)[0] * 2**11
        np.testing.assert_array_equal(mantissa, np.rint(mantissa))


def test_label_entries_may_be_of_any_size_and_meet_in_one_class():
    rng = np.random.RandomState(1)
    x, weight, d_output = rng.randn(6, 8), 0.01 * rng.randn(5, 8), rng.rand(6, 5)
    places = np.array([[0, 1, 4, 5], [2, 2, 0, 2]])
    d_output[tuple(places)] = [-1e20, 3e20, -5e19, 1e20]
    for half, single in zip(products(HALF, x, weight, d_output, places), products(Product, x, weight, d_output)):
        assert_near(half, single)


@pytest.mark.parametrize('factor', [1e-8, 1e8])
def test_what_is_beyond_float16_stays_finite(factor):
    rng = np.random.RandomState(2)
    arrays = rng.randn(4, 8), factor * rng.randn(5, 8), factor * rng.rand(4, 5)
    for values in products(HALF, *arrays):
        assert np.isfinite(values).all() and np.abs(values).max() <= LARGEST_HALF


@pytest.mark.parametrize('options', [{}, {'keep_logits': False}, {'sample_ratio': 0.99999}], ids=str)
@pytest.mark.parametrize('loss', LOSSES)
def test_a_half_step_is_the_dense_step_to_the_steps_of_float16(loss, options):
    rng = np.random.RandomState(7)
    head = to_half(build(loss, 53, 2, **options))
    for _ in range(3):
        embedding, labels = random_batch(rng, 24, 53)
        twin = dense(head, loss)
        statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, measure=True)
        expected_loss, expected_gradient = twin.step(embedding, labels, *SOLVER)
        np.testing.assert_allclose(statistics.loss().asscalar(), expected_loss, rtol=STEP_TOLERANCE)
        assert_near(d_embedding.asnumpy(), expected_gradient, STEP_TOLERANCE)
        for name in head.shards[0].blocks[0].arrays():
            assert_near(whole(head, name), getattr(twin, name), STEP_TOLERANCE)


def test_buffers_are_used_again_and_grow():
    buffers = Buffers(mx.cpu())
    first = buffers.get('rows', (2, 3), 'float16')
    first[:] = 7
    np.testing.assert_array_equal(buffers.get('rows', (3, 1), 'float16').asnumpy(), [[7], [7], [7]])
    assert buffers.get('rows', (2, 3), 'float32').dtype == np.float32
    assert buffers.get('rows', (4, 3), 'float16').shape == (4, 3)
    buffers.get('rows', (2, 2), 'float16')[:] = 5
    np.testing.assert_array_equal(first.asnumpy(), np.full((2, 3), 7))


def test_centers_and_momentum_stay_float32():
    head = to_half(build('arcface', 10, 1))
    head.forward_backward(mx.nd.ones((2, 32)), np.array([3, 4]), SOLVER)
    for array in head.shards[0].blocks[0].arrays().values():
        assert array.dtype == np.float32


@pytest.mark.parametrize('scale, context, native', [
    (0, mx.gpu(0), None), (1.0, mx.cpu(0), False), ('dynamic', mx.gpu(0), True)])
def test_half_precision_runs_have_half_products_where_the_device_has_them(scale, context, native):
    product = make_product(complete(dict(defaults(), fp16_scale=scale)), [context])
    if native is None:
        assert product is Product
    else:
        assert product.func is HalfProduct and product.keywords == {'native': native}
