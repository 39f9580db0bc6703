"""Losses whose margins differ from row to row, against the dense float64 twin."""
import json
import math

import numpy as np
import pytest

import config
from common.errors import UsageError, UserError
from common.mxnet_loader import mx
from recognition.build import build_margin
from recognition.collective import LocalCollective
from recognition.margin import AdaFaceMargin, ElasticMargin, Margin
from recognition.parall_module import Head
from recognition.settings import complete, defaults
from tests.make_sets import identity_set
from tests.reference import DenseHead, adaface, numeric_gradient, unit
from tests.test_head import SOLVER, D, assert_close, picked_classes, whole
from tests.test_parall_module import CountingCollective
from tests.tiny import TinyIter, tiny_module
from tests.tiny_runs import saved_arrays, state_path, tiny_run

S = 16.0
MARGINS = {
    'elasticarc': lambda: ElasticMargin(1, 0.5, 0, S, m2_std=0.05, seed=3),
    'elasticcos': lambda: ElasticMargin(1, 0, 0.35, S, m3_std=0.05, seed=3),
    'elastic below 0': lambda: ElasticMargin(1.2, 0.3, 0.2, S, 0.5, 0.2, seed=3),
    'adaface': lambda: AdaFaceMargin(h=1.2, scale=S, momentum=0.1),
}
each_margin = pytest.mark.parametrize('make', MARGINS.values(), ids=MARGINS)
fast_and_lean = pytest.mark.parametrize('keep_logits', [True, False], ids=['fast', 'lean'])


def build(margin, num_classes, num_shards, keep_logits=True, **options):
    return Head.initial(num_classes, D, [mx.cpu(device) for device in range(num_shards)], margin, 3, LocalCollective(),
                        block_size=7, keep_logits=keep_logits, **options)


def batch_near_centers(rng, head, labels):
    """Rows of many lengths, zero too; every other row is near its center, where an angle may be below its margin.

    Lengths differ by a factor of 3: of a short row without loss, float32 rounding would be the largest gradient.
    """
    embedding = rng.randn(len(labels), D)
    nearest = unit(whole(head, 'centers'))[labels].reshape((len(labels), -1, D))[:, 0]
    embedding[::2] = (nearest + 0.4 / D**0.5 * embedding)[::2]                                    # theta is about 0.4
    embedding *= rng.uniform(15, 45, (len(labels), 1)) / np.linalg.norm(embedding, axis=1, keepdims=True)
    embedding[3:4] = 0
    return embedding.astype(np.float32)


def expected_margins(margin, num_update, embedding):
    """(m1, m2, m3) of the rows, float64; to be asked before the step."""
    if isinstance(margin, ElasticMargin):
        return (margin.m1, *margin.of_rows(num_update, (1, 1, len(embedding)), 0, None).asnumpy().astype(np.float64))
    norms = np.linalg.norm(embedding.astype(np.float64), axis=1)
    m2, m3, _ = adaface(norms, list(margin.state().values()), margin.m, margin.h, margin.momentum)
    return 1.0, m2, m3


def check_step(head, embedding, labels, num_update):
    """One step of ours beside one of the twin that knows the classes that take part; see tests/test_head.py."""
    picked = picked_classes(head, labels, num_update)
    twin = DenseHead(whole(head, 'centers')[picked], expected_margins(head.margin, num_update, embedding), S)
    twin.momentum = whole(head, 'momentum')[picked]
    expected_loss, expected_gradient = twin.step(embedding, np.searchsorted(picked, labels), *SOLVER)
    statistics, d_embedding = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, True, num_update)
    tolerance = 1e-5 / min(1.0, expected_loss)
    assert_close(statistics.loss().asnumpy(), np.array([expected_loss]), tolerance)
    assert_close(d_embedding.asnumpy(), expected_gradient, tolerance)
    for name in ('centers', 'momentum'):
        assert_close(whole(head, name)[picked], getattr(twin, name), tolerance)


@fast_and_lean
@pytest.mark.parametrize('num_shards', [1, 2, 3, 4])
@each_margin
def test_head_equals_the_dense_twin(make, num_shards, keep_logits):
    rng, head = np.random.RandomState(7), build(make(), 53, num_shards, keep_logits)
    for num_update in range(1, 4):
        labels = rng.randint(0, 53, 24)
        check_step(head, batch_near_centers(rng, head, labels), labels, num_update)


@pytest.mark.parametrize('num_classes, num_shards, labels', [
    (10, 4, [0, 9, 3, 3, 5]), (3, 4, [0, 2, 1, 2]), (40, 4, [1, 2, 3, 4, 5]), (40, 3, [17] * 6), (11, 2, [10]),
], ids=['uneven', 'empty shard', 'one shard', 'repeated', 'batch 1'])
@each_margin
def test_awkward_shapes(make, num_classes, num_shards, labels):
    rng, head, labels = np.random.RandomState(1), build(make(), num_classes, num_shards), np.array(labels)
    for num_update in range(1, 3):
        check_step(head, batch_near_centers(rng, head, labels), labels, num_update)


@fast_and_lean
@pytest.mark.parametrize('ratio', [0.05, 0.4])
@each_margin
def test_a_sampled_step_equals_the_dense_twin(make, ratio, keep_logits):
    rng, head = np.random.RandomState(8), build(make(), 60, 3, keep_logits, sample_ratio=ratio)
    for num_update in range(1, 3):
        labels = rng.randint(0, 60, 10)
        check_step(head, batch_near_centers(rng, head, labels), labels, num_update)


@each_margin
def test_with_several_centers(make):
    rng, head = np.random.RandomState(7), build(make(), 53, 3, sub_centers=3)
    for num_update in range(1, 3):
        labels = rng.randint(0, 53, 24)
        check_step(head, batch_near_centers(rng, head, labels), labels, num_update)


def test_the_twin_has_the_right_gradients():
    """Margins of the rows are constants; the second row is so near its center that its angle would be below 0."""
    rng, label = np.random.RandomState(5), np.array([0, 3, 3])
    embedding, centers = rng.randn(3, 4), rng.randn(5, 4)
    embedding[1] = 2 * centers[3] + 0.05
    margins = 1.0, np.array([0.3, -0.4, 0.9]), np.array([0.1, 0.8, 0.0])

    def gradients(embedding, centers):
        return DenseHead(centers, margins, 4.0).gradients(embedding, label)

    _, d_embedding, d_centers, _ = gradients(embedding, centers)
    np.testing.assert_allclose(d_embedding, numeric_gradient(lambda x: gradients(x, centers)[0], embedding), atol=1e-6)
    np.testing.assert_allclose(d_centers, numeric_gradient(lambda x: gradients(embedding, x)[0], centers), atol=1e-6)


def test_margins_of_rows_are_those_of_a_loss_that_has_them():
    cosine = mx.nd.array(np.linspace(-1, 1, 101))
    for m2, m3 in ((0.5, 0.0), (0.0, 0.35), (0.3, 0.2)):
        added = mx.nd.array([[m2] * 101, [m3] * 101])
        fixed = Margin(1.35, m2, m3).target(cosine)
        for ours, theirs in zip(ElasticMargin(1.35, m2_std=1).target(cosine, added), fixed):
            np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=1e-6, atol=1e-6)


def test_an_angle_below_zero_counts_as_zero():
    cosine = mx.nd.array(np.cos([0.0, 0.1, 0.3, 0.5]))
    logit, slope = AdaFaceMargin(scale=1.0).target(cosine, mx.nd.array([[-0.4] * 4, [0.8] * 4]))
    np.testing.assert_allclose(logit.asnumpy(), [0.2, 0.2, 0.2, math.cos(0.1) - 0.8], atol=1e-6)
    np.testing.assert_allclose(slope.asnumpy(), [0, 0, 0, math.sin(0.1) / math.sin(0.5)], atol=1e-5)


# ElasticFace

def test_margins_are_normal_around_their_mean():
    m2, m3 = ElasticMargin(1, 0.5, 0.35, 64, 0.05, 0.02, seed=1).of_rows(1, (1, 1, 20000), 0, None).asnumpy()
    assert (m2.mean(), m3.mean()) == (pytest.approx(0.5, abs=2e-3), pytest.approx(0.35, abs=1e-3))
    assert (m2.std(), m3.std()) == (pytest.approx(0.05, rel=0.03), pytest.approx(0.02, rel=0.03))
    assert abs(np.corrcoef(m2, m3)[0, 1]) < 0.03


def test_margins_depend_on_seed_step_and_row_alone():
    def drawn(seed=0, num_update=5, shape=(1, 1, 12), part=0):
        return ElasticMargin(m2=0.5, m2_std=0.1, seed=seed).of_rows(num_update, shape, part, None).asnumpy()
    np.testing.assert_array_equal(drawn(), drawn())
    np.testing.assert_array_equal(drawn(), drawn(shape=(3, 1, 4)))                    # three processes
    np.testing.assert_array_equal(drawn(), np.concatenate([drawn(shape=(1, 3, 4), part=part) for part in range(3)], 1))
    assert len({drawn().tobytes(), drawn(seed=1).tobytes(), drawn(num_update=6).tobytes()}) == 3


# AdaFace

def test_running_statistics_follow_the_twin():
    margin, running, rng = AdaFaceMargin(momentum=0.9), [20.0, 100.0], np.random.RandomState(0)
    assert list(margin.state().values()) == running
    for _ in range(30):
        norms = rng.uniform(0, 150, 16)
        m2, m3, running = adaface(norms, running, 0.4, 0.333, 0.9)
        ours = margin.of_rows(1, (1, 1, 16), 0, mx.nd.array(norms)).asnumpy()
        np.testing.assert_allclose(ours, [m2, m3], atol=1e-5)
        np.testing.assert_allclose(list(margin.state().values()), running, rtol=1e-5)


def test_equal_lengths_and_lengths_beyond_any_number_stay_finite():
    margin = AdaFaceMargin(momentum=0.0)
    for norms in ([7.0] * 4, [0.0] * 4, [np.inf, 1.0, 2.0, 3.0], [5.0]):
        assert np.isfinite(margin.of_rows(1, (1, 1, len(norms)), 0, mx.nd.array(norms)).asnumpy()).all()
        assert np.isfinite(list(margin.state().values())).all()


def test_lengths_travel_with_the_features():
    module = tiny_module(2, margin=AdaFaceMargin(scale=16.0))
    module.head.collective = CountingCollective()
    module.train_step(TinyIter().next())
    assert module.head.collective.names == ['labels', 'features', 'head_statistics', 'd_features']


def test_in_half_precision_exchange_lengths_are_rounded_and_cut():
    head = build(AdaFaceMargin(momentum=0.0), 20, 2, fp16_exchange=True)
    embedding = np.random.RandomState(0).randn(4, D).astype(np.float32) * [[1], [2], [3], [1e6]]
    head.forward_backward(mx.nd.array(embedding), np.arange(4), SOLVER)
    norms = np.linalg.norm(embedding, axis=1)[:3].astype(np.float16).tolist() + [100.0]
    np.testing.assert_allclose(list(head.margin.state().values()), [np.mean(norms), np.std(norms, ddof=1)], rtol=1e-5)


CASES = {'adaface': dict(loss_name='adaface', loss_m2=0.0, loss_ada_mom=0.9),
         'elastic': dict(loss_m2_std=0.05, loss_m3_std=0.1)}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_a_resumed_run_goes_on_exactly(tmp_path, case):
    identity_set(tmp_path / 'set', 12, 5)
    case = dict(case, num_devices=2, per_batch_size=6, accumulate=2, head_memory='lean')
    tiny_run(tmp_path / 'set', tmp_path / 'whole', max_steps=10, **case)
    for steps in (4, 10):
        tiny_run(tmp_path / 'set', tmp_path / 'parts', max_steps=steps, resume='auto', **case)
    ours, theirs = (saved_arrays(tmp_path / name, 10) for name in ('parts', 'whole'))
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    margins = [json.loads((state_path(tmp_path / name, 10) / 'manifest.json').read_text())['margin']
               for name in ('parts', 'whole')]
    assert margins[0] == margins[1] and (margins[0] is None) == (case.get('loss_name') is None)
    with pytest.raises(UserError, match='loss_s is 16.0 there and 32.0 now'):
        tiny_run(tmp_path / 'set', tmp_path / 'parts', max_steps=12, resume='auto', **dict(case, loss_s=32.0))


@pytest.mark.parametrize('state', [None, {}, {'norm_mean': 1.0}, {'norm_mean': 'x', 'norm_deviation': 1.0},
                                   {'norm_mean': math.nan, 'norm_deviation': 1.0}, [1, 2]])
def test_a_state_that_adaface_cannot_have_is_refused(state):
    with pytest.raises((LookupError, TypeError, ValueError)):
        AdaFaceMargin().restore(state)
    with pytest.raises(ValueError):
        Margin().restore({'norm_mean': 1.0})


# Settings

def test_presets_make_these_margins():
    made = {name: build_margin(complete(config.generate_config('r50', 'demo', name))) for name in config.loss}
    assert made['softmax'] is None and type(made['arcface']) is Margin
    assert (made['elasticarc'].m2, made['elasticarc'].m2_std, made['elasticarc'].m3_std) == (0.5, 0.05, 0.0)
    assert (made['elasticcos'].m3, made['elasticcos'].m3_std, made['elasticcos'].m2) == (0.35, 0.05, 0.0)
    assert (made['adaface'].m, made['adaface'].h, made['adaface'].momentum) == (0.4, 0.333, 0.99)


def test_margins_that_have_no_effect_are_refused():
    with pytest.raises(UsageError, match='loss_m2 = 0.5 has no effect with loss_name = adaface.*loss_ada_m'):
        complete(dict(defaults(), loss_name='adaface', loss_m2=0.5))


@pytest.mark.parametrize('make, said', [
    (lambda: ElasticMargin(m2_std=-1), 'loss_m2_std'), (lambda: ElasticMargin(m3_std=math.nan), 'loss_m3_std'),
    (lambda: AdaFaceMargin(m=-1), 'loss_ada_m'), (lambda: AdaFaceMargin(h=0), 'loss_ada_h'),
    (lambda: AdaFaceMargin(momentum=1.0), 'loss_ada_mom')])
def test_senseless_margins_are_refused(make, said):
    with pytest.raises(UsageError, match=said):
        make()
