"""Several batches of one step are one larger batch."""
import numpy as np
import pytest

from common.mxnet_loader import mx
from recognition.loss_scale import ConstantScale
from tests.make_sets import identity_set
from tests.test_parall_module import centers
from tests.tiny import TinyIter, tiny_module
from tests.tiny_runs import saved_arrays, tiny_run

CASES = {'one device': {}, 'devices': {'num_devices': 2}, 'lean': {'keep_logits': False, 'num_devices': 3},
         'partial': {'sample_ratio': 0.3}, 'clipped': {'num_devices': 2, 'clip_norm': 0.5},
         'half': {'loss_scale': 64}, 'local': {'num_devices': 2, 'kvstore': 'local'}}


def in_parts(batch, count):
    """The same images as so many batches of one step."""
    size = len(batch.label[0]) // count
    cuts = [slice(part * size, (part + 1) * size) for part in range(count)]
    return mx.io.DataBatch([batch.data[0][cut] for cut in cuts], [batch.label[0][cut] for cut in cuts])


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
@pytest.mark.parametrize('count', [2, 4])
def test_parts_are_one_step_of_all_their_images(case, count):
    """Without batch norm. Momentum and weight decay count once per step."""
    case = dict(case)
    if 'loss_scale' in case:
        case['loss_scale'] = ConstantScale(case['loss_scale'])
    whole, parts = tiny_module(batch_size=24, **case), tiny_module(batch_size=24 // count, accumulate=count, **case)
    slack = 3e-2 if 'loss_scale' in case else 1e-4
    for batch in TinyIter(24, batches_per_epoch=8):
        losses = [float(module.train_step(step).loss().asscalar())
                  for module, step in ((whole, batch), (parts, in_parts(batch, count)))]
        assert losses[0] == pytest.approx(losses[1], rel=slack)
    for ours, theirs in [(centers(parts), centers(whole))] + [
            (parts.backbone.parameters()[0][name].asnumpy(), array.asnumpy())
            for name, array in whole.backbone.parameters()[0].items()]:
        assert np.abs(ours - theirs).max() <= slack * np.abs(theirs).max()


def test_a_resumed_run_goes_on_exactly(tmp_path):
    """17 batches per epoch, 3 per step: a step may hold batches of two epochs."""
    identity_set(tmp_path / 'set', 12, 17)
    case = {'accumulate': 3, 'num_devices': 2, 'per_batch_size': 6, 'sample_ratio': 0.5, 'net_name': 'dropping'}
    tiny_run(tmp_path / 'set', tmp_path / 'whole', max_steps=14, **case)
    for steps in (6, 14):
        tiny_run(tmp_path / 'set', tmp_path / 'parts', max_steps=steps, resume='auto', **case)
    ours, theirs = (saved_arrays(tmp_path / name, 14) for name in ('parts', 'whole'))
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_an_epoch_has_fewer_steps(tmp_path):
    identity_set(tmp_path / 'set', 12, 17)
    assert tiny_run(tmp_path / 'set', tmp_path / 'run', end_epoch=2, accumulate=4).module.num_update == 2 * 17 // 4
