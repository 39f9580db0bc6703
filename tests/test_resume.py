"""Training goes on after a stop as if there had been none, or refuses to."""
import json
import re

import numpy as np
import pytest

from common import rec2shufrec
from tests.make_sets import identity_set
from tests.tiny_runs import saved_arrays, state_path, tiny_run


@pytest.fixture(scope='module')
def sets(tmp_path_factory):
    """{is_shuffled_rec: folder} of the same 204 images of 12 people: 17 batches of 12."""
    folder = tmp_path_factory.mktemp('sets')
    identity_set(folder / 'indexed', 12, 17)
    assert rec2shufrec.main(['--input', str(folder / 'indexed'), '--output', str(folder / 'shuffled')]) == 0
    return {False: folder / 'indexed', True: folder / 'shuffled'}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys() and {'centers', 'momentum', 'weight/conv_weight'} <= theirs.keys()
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def losses(caplog):
    """{step: text of its loss} of the log since it was cleared."""
    return dict(re.findall(r'step (\d+)/\d+ epoch \d+ loss (\S+)', caplog.text))


TWO = {'num_devices': 2, 'per_batch_size': 6}
CASES = {                                                      # (is_shuffled_rec, settings)
    'indexed': (False, {}), 'shuffled': (True, {}), 'devices': (True, {'num_devices': 3, 'per_batch_size': 4}),
    'partial': (False, dict(TWO, sample_ratio=0.5)), 'half': (True, {'fp16_scale': 'dynamic'}),
    'half devices': (False, dict(TWO, fp16_scale=128)), 'dropout': (False, dict(TWO, net_name='dropping')),
    'plain softmax': (True, dict(TWO, loss_name='softmax', kvstore='local')), 'verified': (False, dict(TWO, verbose=8)),
    'no momentum': (False, dict(TWO, mom=0)), 'half, no momentum': (True, {'mom': 0, 'fp16_scale': 2}),
}


@pytest.mark.parametrize('shuffled, case', CASES.values(), ids=CASES)
def test_twenty_and_twenty_steps_are_forty(sets, tmp_path, caplog, shuffled, case):
    caplog.set_level('INFO')
    case = dict(case, is_shuffled_rec=shuffled)
    tiny_run(sets[shuffled], tmp_path / 'whole', max_steps=40, **case)
    whole = losses(caplog)
    tiny_run(sets[shuffled], tmp_path / 'parts', max_steps=20, **case)
    caplog.clear()
    tiny_run(sets[shuffled], tmp_path / 'parts', max_steps=40, resume='auto', **case)
    assert len(losses(caplog)) == 20 and losses(caplog).items() <= whole.items()
    assert_same(saved_arrays(tmp_path / 'parts', 40), saved_arrays(tmp_path / 'whole', 40))
    manifests = [json.loads((state_path(tmp_path / name, 40) / 'manifest.json').read_text())
                 for name in ('parts', 'whole')]
    for name in ('reader', 'checkpoints', 'loss_scale', 'verified_at'):
        assert manifests[0][name] == manifests[1][name], name


@pytest.mark.parametrize('shuffled', [False, True], ids=['indexed', 'shuffled'])
def test_four_then_three_then_one_device(sets, tmp_path, shuffled):
    """Without batch norm, whose statistics are those of a device's own images."""
    devices = dict(num_devices=4, per_batch_size=3), dict(num_devices=3, per_batch_size=4), dict(per_batch_size=12)
    common = {'net_name': 'plain', 'is_shuffled_rec': shuffled}
    for number, case in enumerate(devices, 1):
        tiny_run(sets[shuffled], tmp_path / 'run', max_steps=10 * number, resume='auto', **case, **common)
    tiny_run(sets[shuffled], tmp_path / 'one', max_steps=30, **devices[0], **common)
    ours, theirs = saved_arrays(tmp_path / 'run', 30), saved_arrays(tmp_path / 'one', 30)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)
