"""What is measured of a step beside its loss, against float64, and that measuring changes nothing."""
import numpy as np
import pytest

from common.mxnet_loader import mx
from recognition import backbone
from recognition.loss_scale import ConstantScale
from tests.reference import unit
from tests.test_head import LOSSES, SOLVER, D, build, dense, whole
from tests.tiny import TinyIter, tiny_module

BATCHES = {'usual': [3, 0, 19, 7, 7, 12], 'all in one shard': [1, 1, 2, 0, 2, 1], 'one class': [5] * 6}


def expected_measures(head, loss, embedding, labels):
    """{name: value} of the whole matrix, float64."""
    twin, rows = dense(head, loss), np.arange(len(labels))
    _, similarity, _ = twin.nearest(embedding)
    similarity = similarity + (0 if twin.bias is None else twin.bias)
    own = similarity[rows, labels]
    similarity[rows, labels] = -np.inf
    expected = {'accuracy': (own >= similarity.max(axis=1)).mean(), 'own_cosine': own.mean(),
                'other_cosine': similarity.max(axis=1).mean(),
                'embedding_norm': np.linalg.norm(embedding, axis=1).mean(),
                'center_norm': np.linalg.norm(twin.centers, axis=-1).mean()}
    if LOSSES[loss] is None:
        del expected['own_cosine'], expected['other_cosine']
    return expected


@pytest.mark.parametrize('labels', BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('num_shards, options', [
    (1, {}), (2, {'keep_logits': False}), (3, {'sub_centers': 3}), (4, {'sub_centers': 2, 'keep_logits': False})])
def test_measures_of_the_head_are_those_of_the_whole_matrix(loss, labels, num_shards, options):
    head, labels = build(loss, 20, num_shards, **options), np.array(labels)
    embedding = np.random.RandomState(5).randn(len(labels), D).astype(np.float32) * 3
    nearest = whole(head, 'centers')[labels].reshape(len(labels), -1, D)[:, 0]
    embedding[::2] = (500 * nearest + 0.5 * embedding)[::2]                    # half of the rows are at their center
    expected = expected_measures(head, loss, embedding, labels)
    statistics, _ = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, measure=True)
    assert statistics.measures.keys() == expected.keys()
    for name, value in expected.items():
        assert statistics.measures[name].asscalar() == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_of_sampled_classes_those_that_take_part_count():
    head = build('arcface', 20, 2, sample_ratio=0.3)
    centers, taken = whole(head, 'centers'), []
    for shard in head.shards:
        pick = shard.sampler.pick
        shard.sampler.pick = lambda columns, start, *rest, pick=pick: (
            taken.append(start + pick(columns, start, *rest)), pick(columns, start, *rest))[1]
    labels, embedding = np.array([3, 17]), np.random.RandomState(1).randn(2, D).astype(np.float32)
    statistics, _ = head.forward_backward(mx.nd.array(embedding), labels, SOLVER, measure=True)
    classes = np.concatenate(taken)
    cosines = unit(embedding.astype(np.float64)) @ unit(centers[classes]).T
    others = [cosine[classes != label].max() for cosine, label in zip(cosines, labels)]
    assert 2 < len(classes) < 20
    assert statistics.measures['other_cosine'].asscalar() == pytest.approx(np.mean(others), rel=1e-5)
    assert statistics.measures['center_norm'].asscalar() == pytest.approx(
        np.linalg.norm(centers[classes], axis=1).mean(), rel=1e-5)


def test_where_no_other_class_takes_part_its_cosine_counts_as_minus_one():
    head = build('arcface', 1, 1)
    statistics, _ = head.forward_backward(mx.nd.ones((3, D)), np.zeros(3, np.int64), SOLVER, measure=True)
    assert statistics.measures['other_cosine'].asscalar() == -1 and statistics.measures['accuracy'].asscalar() == 1


def test_an_embedding_and_a_center_of_zero():
    head = build('arcface', 20, 2)
    head.shards[0].blocks[0].weight[1] = 0
    expected = expected_measures(head, 'arcface', np.zeros((1, D)), np.array([1]))
    statistics, _ = head.forward_backward(mx.nd.zeros((1, D)), np.array([1]), SOLVER, measure=True)
    for name, value in expected.items():
        assert statistics.measures[name].asscalar() == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize('options', [{}, {'keep_logits': False}, {'sub_centers': 2}, {'sample_ratio': 0.4},
                                     {'loss_scale': ConstantScale(64)}],
                         ids=['fast', 'lean', 'sub-centers', 'sampled', 'half'])
def test_measuring_changes_no_bit(options):
    def run(measure):
        module = tiny_module(2, **options)
        losses = [float(module.train_step(batch, measure).loss().asscalar()) for batch in TinyIter()]
        arrays = dict(module.backbone.training_arrays())
        return losses, arrays, [block.rows(name) for shard in module.head.shards for block in shard.blocks
                                for name in block.arrays()]
    (losses, backbone, centers), (plain_losses, plain_backbone, plain_centers) = run(True), run(False)
    assert losses == plain_losses and backbone.keys() == plain_backbone.keys()
    for ours, theirs in zip([*backbone.values(), *centers], [*plain_backbone.values(), *plain_centers]):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize('num_devices', [1, 2, 3])
@pytest.mark.parametrize('scale', [None, 64.0])
def test_the_norm_of_the_gradient(num_devices, scale):
    """After one step without momentum or decay, parameters have moved by lr times the gradient."""
    module = tiny_module(num_devices, loss_scale=scale and ConstantScale(scale), lr=0.5)
    module.solver.momentum = module.solver.wd = 0.0
    module.backbone.init_optimizer(module.solver, loss_scale=module.backbone.loss_scale)
    before = {name: array.copy() for name, array in module.backbone.training_arrays() if name.startswith('weight/')}
    measured = module.train_step(next(TinyIter()), True).measures['gradient_norm'].asscalar()
    after = dict(module.backbone.training_arrays())
    squares = sum(np.square((after[name] - array).astype(np.float64)).sum() for name, array in before.items())
    assert measured == pytest.approx(np.sqrt(squares) / 0.5, rel=1e-4 if scale is None else 1e-3)


def test_a_gradient_in_several_parts(monkeypatch):
    monkeypatch.setattr(backbone, 'PART', 50)
    parts, whole = (tiny_module(count).train_step(next(TinyIter()), True).measures['gradient_norm'].asscalar()
                    for count in (2, 1))
    assert parts == pytest.approx(whole, rel=1e-4)


def test_a_frozen_backbone_has_no_gradient():
    module = tiny_module(1)
    module.freeze_backbone = 1
    first, second = (module.train_step(next(TinyIter()), True).measures for _ in range(2))
    assert 'gradient_norm' not in first and 'gradient_norm' in second
