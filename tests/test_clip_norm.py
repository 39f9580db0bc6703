"""The backbone's gradient, cut to a length, on one device and on several."""
import numpy as np
import pytest

from recognition.backbone import clip_factor
from recognition.loss_scale import ConstantScale
from tests.tiny import TinyIter, tiny_module


def moves(**options):
    """One step without momentum and decay -> (length of the gradient, {name: how far each parameter went})."""
    module = tiny_module(lr=0.1, **options)
    for name in ('momentum', 'wd'):
        setattr(module.backbone._module._optimizer, name, 0.0)
    before = {name: array.asnumpy() for name, array in module.backbone.parameters()[0].items()}
    norm = module.train_step(TinyIter().next(), True).measures['gradient_norm'].asscalar()
    return norm, {name: array.asnumpy() - before[name] for name, array in module.backbone.parameters()[0].items()}


def length(arrays):
    return np.sqrt(sum(np.square(array.astype(np.float64)).sum() for array in arrays.values()))


@pytest.mark.parametrize('num_devices', [1, 2, 3])
@pytest.mark.parametrize('kvstore', ['device', 'local'])
def test_a_long_gradient_keeps_its_direction_and_gets_the_length(num_devices, kvstore):
    norm, free = moves()
    _, clipped = moves(num_devices=num_devices, kvstore=kvstore, clip_norm=norm / 4)
    assert length(clipped) == pytest.approx(0.1 * norm / 4, rel=1e-4)
    for name, move in free.items():
        np.testing.assert_allclose(clipped[name], move / 4, rtol=1e-3, atol=1e-6)


def test_a_short_gradient_stays_as_it_is():
    norm, free = moves()
    _, clipped = moves(clip_norm=2 * norm)
    for name, move in free.items():
        np.testing.assert_array_equal(clipped[name], move)


@pytest.mark.parametrize('num_devices', [1, 2])
def test_the_loss_scale_does_not_count(num_devices):
    norm, _ = moves(num_devices=num_devices, loss_scale=ConstantScale(64))
    _, clipped = moves(num_devices=num_devices, loss_scale=ConstantScale(64), clip_norm=norm / 3)
    assert length(clipped) == pytest.approx(0.1 * norm / 3, rel=0.02)


def test_each_step_is_clipped_by_its_own_length():
    """A short gradient after a long one is not made smaller."""
    one, other = tiny_module(), tiny_module(clip_norm=1e9)
    other.backbone._clip_norm = 1e-3
    other.train_step(TinyIter().next())
    assert other.backbone._module._optimizer.rescale_grad < 1
    other.backbone._clip_norm = 1e9
    other.train_step(TinyIter().next())
    assert other.backbone._module._optimizer.rescale_grad == one.backbone._module._optimizer.rescale_grad == 1


def test_factor():
    assert clip_factor(8.0, 2.0) == 0.25 and clip_factor(2.0, 2.0) == clip_factor(0.0, 2.0) == 1.0
