"""Half precision as a training sees it, and what a step that overflows leaves alone."""
import numpy as np
import pytest

from common.errors import UserError
from common.mxnet_loader import mx
from recognition.backbone import Backbone
from recognition.build import build_backbone
from recognition.checkpoint import CheckpointRule, Checkpoints
from recognition.collective import LocalCollective
from recognition.loss_scale import ConstantScale, DynamicScale
from recognition.margin import Margin
from recognition.optimizer import MultiStepSchedule, SolverOptions
from recognition.parall_module import Head
from recognition.settings import complete, defaults
from symbols import get_backbone
from tests.reference import DenseHead
from tests.test_checkpoint import embed
from tests.test_parall_module import centers, curve
from tests.tiny import EMBEDDING, SIZE, TinyIter, tiny_module, tiny_symbol

HALF_STEP = 2.0**-10        # distance of neighbouring float16 numbers, at most, relative


def parameters(module):
    """Name -> NumPy of everything the backbone holds."""
    return {name: array.asnumpy() for part in module.backbone.parameters() for name, array in part.items()}


def optimizer_states(module):
    """Index -> (momentum, float32 master weight) as NumPy; a float32 parameter has momentum alone."""
    inner = module.backbone._module
    updater = inner._kvstore._updater if inner._update_on_kvstore else inner._updater
    return {index: [array.asnumpy() for array in (state if isinstance(state, (tuple, list)) else [state])]
            for index, state in updater.states.items()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys() and ours
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=str(name))


# ---- in training

def test_scale_1_and_1024_give_the_same_weights_after_twenty_steps():
    """Each within three float16 steps of the largest weight: both round their gradients, each elsewhere."""
    one, large = (tiny_module(2, loss_scale=ConstantScale(value)) for value in (1, 1024))
    losses = curve(one), curve(large)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)
    assert losses[0][-1] < 0.8 * losses[0][0]
    theirs = parameters(one)
    for name, values in parameters(large).items():
        np.testing.assert_allclose(values, theirs[name], rtol=0, atol=3 * HALF_STEP * np.abs(theirs[name]).max())
    np.testing.assert_allclose(centers(large), centers(one), rtol=0, atol=3 * HALF_STEP * np.abs(centers(one)).max())


def test_powers_of_two_give_the_same_bits_where_nothing_underflows():
    assert curve(tiny_module(loss_scale=ConstantScale(256)), 5) == curve(tiny_module(loss_scale=ConstantScale(512)), 5)


def test_half_precision_follows_the_float32_curve():
    half = curve(tiny_module(loss_scale=ConstantScale(256)))
    np.testing.assert_allclose(half, curve(tiny_module()), rtol=0.02)          # while it falls fifty times


@pytest.mark.parametrize('scale, survives', [(1, False), (1024, True)])
def test_a_gradient_of_1e_8_survives_with_1024_and_is_lost_with_1(scale, survives):
    """The bias of the embedding layer gets the gradient of the embedding itself."""
    module = tiny_module(loss_scale=ConstantScale(scale), lr=1.0, batch_size=1)
    module.backbone.forward(TinyIter(1).next().data[0])
    module.backbone.backward(mx.nd.full((1, 16), 1e-8))
    module.backbone.update(1)
    momenta = [state for state in optimizer_states(module).values() if state[0].shape == (16,)][0][0]
    assert np.abs(momenta + 1e-8).max() <= 1e-8 * HALF_STEP * 8 if survives else not momenta.any()


def test_master_weights_are_float32_and_keep_what_float16_cannot():
    module = tiny_module(loss_scale=ConstantScale(256), lr=1e-6)
    before = parameters(module)
    curve(module, 10)
    for momentum, master in optimizer_states(module).values():
        assert momentum.dtype == master.dtype == np.float32
        assert any(master.shape == half.shape and (master != half).any() and
                   np.abs(master - half).max() < 1e-3 for half in before.values())


@pytest.mark.parametrize('kvstore', ['device', 'local'])
@pytest.mark.parametrize('num_devices', [1, 2])
def test_a_step_that_overflows_leaves_the_backbone_alone(num_devices, kvstore):
    module = tiny_module(num_devices, loss_scale=ConstantScale(256), kvstore=kvstore)
    curve(module, 3)
    before, states, head = parameters(module), optimizer_states(module), centers(module)
    module.backbone.loss_scale.value = 1e8
    curve(module, 2)
    assert_same(parameters(module), before)
    for index, arrays in optimizer_states(module).items():
        for ours, theirs in zip(arrays, states[index]):
            np.testing.assert_array_equal(ours, theirs)
    assert module.backbone.loss_scale.num_skipped == 2 and module.num_update == 5
    moved = centers(module)
    assert np.isfinite(moved).all() and (moved != head).any()          # the head's gradients never carry the scale


def test_centers_are_updated_alike_whatever_the_scale():
    """The step that overflows moves them as it would have without overflow."""
    good, bad = (tiny_module(loss_scale=ConstantScale(value)) for value in (256, 1e8))
    assert curve(good, 1) == curve(bad, 1)
    np.testing.assert_array_equal(centers(good), centers(bad))


def test_skipped_steps_count_for_the_learning_rate_of_both():
    """A rate that falls after step 3 has fallen for the fourth, though two of the first three were skipped."""
    def moved(lr_steps):
        module = tiny_module(loss_scale=ConstantScale(1e8), lr=0.1, lr_steps=lr_steps)
        module.solver.momentum = module.backbone._module._optimizer.momentum = 0.0
        curve(module, 3)
        module.backbone.loss_scale.value = 256
        before = parameters(module)['fc1_weight']
        curve(module, 1)
        return np.abs(parameters(module)['fc1_weight'].astype('float64') - before).max()
    assert moved((3,)) == pytest.approx(moved(()) / 10, rel=0.1)


def test_a_constant_scale_that_always_overflows_stops_the_run():
    with pytest.raises(UserError, match='50 steps in a row'):
        curve(tiny_module(loss_scale=ConstantScale(1e8)), 51)


def test_a_dynamic_run_recovers_and_learns():
    """Too large a scale at the start, and an overflow in between: it finds its scale and the loss goes on falling."""
    scale = DynamicScale(value=2.0**24, patience=20)
    module = tiny_module(2, loss_scale=scale)
    losses = curve(module, 12)
    skipped = scale.num_skipped
    assert 0 < skipped < 12 and 1 < scale.value < 2**24
    scale.value = 1e8
    losses += curve(module, 48)
    assert skipped < scale.num_skipped < skipped + 20 and 1 < scale.value < 2**24
    assert np.mean(losses[-6:]) < 0.5 * np.mean(losses[6:12]) < 0.5 * losses[0] and np.isfinite(losses).all()


def test_the_check_waits_once_per_step(monkeypatch):
    module = tiny_module(2, loss_scale=DynamicScale(value=256))
    batch, waits = TinyIter().next(), []
    wait = mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, 'asnumpy', lambda self: waits.append(self.shape) or wait(self))
    module.train_step(batch)
    assert sorted(waits) == [(1,), (12,)]           # the flag, and the labels, which are on the host


# ---- what stays float32

def images(num_images):
    return np.random.RandomState(3).randint(0, 256, (num_images, 3, SIZE, SIZE)).astype(np.uint8)


@pytest.mark.parametrize('sample_ratio', [1.0, 0.001])
def test_labels_2049_and_70000_are_right_in_a_half_run(sample_ratio):
    """Neither they nor their neighbours are float16 numbers; the loss and the centers moved are those of float64."""
    labels = np.array([2048, 2049, 2050, 69999, 70000, 70001, 2049, 0])
    module = tiny_module(2, len(labels), loss_scale=ConstantScale(1024))
    contexts = module.backbone.contexts
    module.head = Head.initial(70003, EMBEDDING, contexts, Margin(1, 0.5, 0, scale=16.0), 0, LocalCollective(),
                               sample_ratio=sample_ratio)
    before = centers(module)
    embedding = module.backbone.embed(images(len(labels)))
    statistics = module.train_step(mx.io.DataBatch([mx.nd.array(images(len(labels)), dtype='uint8')],
                                                   [mx.nd.array(labels, dtype='int64')]))
    moved = np.flatnonzero((centers(module) != before).any(axis=1)) if sample_ratio < 1 else np.arange(len(before))
    assert set(labels) <= set(moved)
    twin = DenseHead(before[moved], (1, 0.5, 0), 16.0)
    loss, _ = twin.step(embedding, np.searchsorted(moved, labels), 0.02, 0.9, 5e-4)
    assert float(statistics.loss().asscalar()) == pytest.approx(loss, rel=1e-5)
    step = twin.centers - before[moved]
    np.testing.assert_allclose(centers(module)[moved] - before[moved], step, rtol=1e-3, atol=1e-4 * np.abs(step).max())


@pytest.mark.parametrize('size', [100.0, 2000.0])
def test_an_embedding_whose_norm_is_above_256_is_right(size):
    """Its square is no float16 number. Loss and the gradient that reaches the backbone are those of float64."""
    module = tiny_module(2, loss_scale=ConstantScale(1024))
    arguments, auxiliary = module.backbone.parameters()
    arguments['fc1_bias'] += mx.nd.array(np.random.RandomState(1).randn(EMBEDDING) * size, dtype='float16')
    module.backbone.set_parameters(arguments, auxiliary)
    batch, twin = TinyIter().next(), DenseHead(centers(module), (1, 0.5, 0), 16.0)
    embedding = module.backbone.forward(batch.data[0])
    assert embedding.dtype == np.float32 and (np.linalg.norm(embedding.asnumpy(), axis=1) > 256).all()
    labels = batch.label[0].asnumpy()
    loss, d_embedding, _, _ = twin.gradients(embedding.asnumpy(), labels)
    statistics, found = module.head.forward_backward(embedding, labels, (0.02, 0.9, 5e-4))
    assert float(statistics.loss().asscalar()) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(found.asnumpy(), d_embedding, rtol=1e-3, atol=1e-4 * np.abs(d_embedding).max())
    before = parameters(module)
    module.backbone.backward(found)
    module.backbone.update(1)
    after = parameters(module)
    assert module.backbone.loss_scale.num_skipped == 0 and all(np.isfinite(values).all() for values in after.values())
    assert (after['conv_weight'] != before['conv_weight']).any()


def test_embedding_statistics_centers_and_gradient_are_float32():
    module = tiny_module(2, loss_scale=ConstantScale(1024))
    batch = TinyIter().next()
    embedding = module.backbone.forward(batch.data[0])
    statistics, d_embedding = module.head.forward_backward(embedding, batch.label[0].asnumpy(), (0.1, 0.9, 0))
    assert embedding.dtype == d_embedding.dtype == statistics.array.dtype == np.float32
    assert batch.label[0].dtype == np.int64
    blocks = [block for shard in module.head.shards for block in shard.blocks]
    assert {array.dtype for block in blocks for array in block.arrays().values()} == {np.float32}


def test_a_half_checkpoint_loads_in_a_plain_float32_module(tmp_path):
    module = tiny_module(2, loss_scale=DynamicScale(value=1024))
    curve(module, 5)
    Checkpoints(str(tmp_path / 'model'), tiny_symbol(), CheckpointRule(2)).save(module, None)
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(tmp_path / 'model'), 1)
    assert {array.dtype for array in [*arguments.values(), *auxiliary.values()]} == {np.float32}
    half = module.backbone.embed(images(12))
    np.testing.assert_allclose(embed(symbol, arguments, auxiliary, images(12).astype(np.float32)), half, rtol=0,
                               atol=4 * HALF_STEP * np.abs(half).max())


# ---- a network with batch norm

@pytest.fixture
def mobile():
    """A half precision backbone of two devices, one step old, and the step: loss scale -> None."""
    symbol = get_backbone('fmobilefacenet')(net_blocks=(1, 1, 1, 1), net_multiplier=0.125, embedding_size=EMBEDDING,
                                            dtype='float16', prelu='fast')
    backbone = Backbone(symbol, [mx.cpu(0), mx.cpu(1)], 8, (3, 112, 112), seed=0)
    backbone.init_optimizer(SolverOptions(MultiStepSchedule(0.1)), loss_scale=ConstantScale(1024))

    def step(scale):
        backbone.loss_scale.value = scale
        rng = np.random.RandomState(0)
        backbone.forward(mx.nd.array(rng.randint(0, 256, (8, 3, 112, 112)), dtype='uint8'))
        backbone.backward(mx.nd.array(rng.randn(8, EMBEDDING) * 0.01))
        backbone.update(1)
    step(1024)
    return backbone, step


def held(part):
    return {name: array.asnumpy() for name, array in part.items()}


def test_an_overflow_keeps_running_statistics_and_they_stay_finite(mobile):
    backbone, step = mobile
    arguments, auxiliary = map(held, backbone.parameters())
    step(1e8)
    assert backbone.loss_scale.num_skipped == 1
    after, statistics = map(held, backbone.parameters())
    del after['fc1_gamma'], arguments['fc1_gamma']              # fixed: every forward pass sets it to 1
    assert_same(after, arguments)
    assert all(np.isfinite(values).all() for values in statistics.values())
    assert any((statistics[name] != auxiliary[name]).any() for name in statistics)


def test_every_half_parameter_has_a_float32_master_and_no_other_has_one(mobile):
    inner = mobile[0]._module
    states = inner._kvstore._updater.states
    arguments, _ = mobile[0].parameters()
    assert len(states) == len(arguments)
    for index, name in enumerate(inner._param_names):
        state = states[name] if name in states else states[index]
        if arguments[name].dtype == np.float16:
            momentum, master = state
            assert momentum.dtype == master.dtype == np.float32
            np.testing.assert_array_equal(master.astype('float16').asnumpy(), arguments[name].asnumpy())
        else:
            assert arguments[name].dtype == state.dtype == np.float32 and name.endswith(('_gamma', '_beta'))


# ---- from the settings to the network

@pytest.mark.parametrize('fp16_scale, context, expected', [
    (0, mx.gpu(0), {'prelu': 'fast'}),
    (1, mx.cpu(0), {'prelu': 'fast', 'dtype': 'float16', 'half_products': False}),
    ('dynamic', mx.gpu(0), {'prelu': 'fast', 'dtype': 'float16', 'half_products': True})])
def test_products_are_half_on_devices_that_have_them(fp16_scale, context, expected):
    class Built(Exception):
        pass

    def builder(embedding_size, **training):
        raise Built(training)
    with pytest.raises(Built) as caught:
        cfg = complete(dict(defaults(), image_shape=[112, 112, 3], fp16_scale=fp16_scale))
        build_backbone(cfg, lambda name: builder, [context], None, LocalCollective())
    assert caught.value.args[0] == expected
