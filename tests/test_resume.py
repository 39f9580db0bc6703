"""Training goes on after a stop as if there had been none, or refuses to."""
import json
import re
import signal

import numpy as np
import pytest

from common import rec2shufrec
from common.errors import UserError
from tests.make_sets import identity_set
from tests.tiny_runs import saved_arrays, state_path, tiny_run, tiny_trainer


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
    'frozen': (False, dict(TWO, freeze_backbone=30, warmup=35)), 'half, frozen before': (
        True, {'freeze_backbone': 10, 'fp16_scale': 'dynamic', 'warmup': 25}),
    'cosine': (False, dict(TWO, lr_policy='cosine', lr_total=40, warmup=25)),
    'poly': (True, dict(TWO, lr_policy='poly', lr_total=45, lr_power=1.5)),
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


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob('*')) if path.is_file()}


def test_another_training_is_refused_and_nothing_changes(sets, tmp_path):
    folder = tmp_path / 'run'
    tiny_run(sets[False], folder, max_steps=3)
    before = files(folder)
    for change, said in (({'emb_size': 24}, 'emb_size is 16 there and 24 now'),
                         ({'net_name': 'plain'}, 'net_name is fresnet there and plain now'),
                         ({'loss_m2': 0.4, 'loss_s': 32}, 'loss_s is 16.0 there and 32.0 now, loss_m2 is 0.3'),
                         ({'loss_name': 'softmax'}, 'loss_name is margin_softmax there and softmax now')):
        with pytest.raises(UserError, match='cannot resume .*step-00000003: %s' % said):
            tiny_trainer(sets[False], folder, resume='auto', **change)
        assert files(folder) == before


def test_another_number_of_classes_is_refused(sets, tmp_path):
    tiny_run(sets[False], tmp_path / 'run', max_steps=3)
    identity_set(tmp_path / 'more', 13, 2)
    with pytest.raises(UserError, match='num_classes is 12 there and 13 now'):
        tiny_trainer(tmp_path / 'more', tmp_path / 'run', resume='auto', num_classes=13)


def test_a_network_whose_settings_do_not_tell_is_refused(sets, tmp_path):
    tiny_run(sets[False], tmp_path / 'run', max_steps=3)
    path = state_path(tmp_path / 'run', 3)
    trainer = tiny_trainer(sets[False], tmp_path / 'other', net_name='plain')
    with np.load(str(path / 'backbone.npz')) as arrays, \
            pytest.raises(UserError, match=r'another network: bn_\w+ is \(8,\) in it, none is needed'):
        trainer.module.backbone.restore(arrays)


def test_a_changed_schedule_is_taken_and_said(sets, tmp_path, caplog):
    caplog.set_level('INFO')
    tiny_run(sets[False], tmp_path / 'run', max_steps=3)
    trainer = tiny_run(sets[False], tmp_path / 'run', max_steps=6, resume='auto', lr=0.5, lr_steps=[2, 9], wd=0.001)
    assert 'schedule changed: lr 0.05 -> 0.5, lr_steps [100000, 160000, 220000] -> [2, 9]; step 4 has lr 0.05' \
        in caplog.text
    assert 'settings changed since it was saved: wd 0.0005 -> 0.001, max_steps 3 -> 6' in caplog.text
    assert trainer.module.lr == pytest.approx(0.05) and trainer.module.backbone._module._optimizer.wd == 0.001


def test_a_longer_run_whose_schedule_follows_its_length_is_said(sets, tmp_path, caplog):
    caplog.set_level('INFO')
    tiny_run(sets[False], tmp_path / 'run', max_steps=3, lr_policy='cosine')
    tiny_run(sets[False], tmp_path / 'run', max_steps=6, resume='auto', lr_policy='cosine')
    assert 'schedule changed: lr_total 3 -> 6; step 4 has lr 0.025' in caplog.text


def test_other_images_or_batches_are_said(sets, tmp_path, caplog):
    tiny_run(sets[False], tmp_path / 'run', max_steps=5)
    trainer = tiny_trainer(sets[False], tmp_path / 'run', resume='auto', per_batch_size=24)
    assert trainer.train_iter.state()['batch'] == 2            # 60 images seen: 48 of them are in two batches
    assert '24 images per step where there were 12: the epoch goes on at its batch 2' in caplog.text
    identity_set(tmp_path / 'more', 12, 5)
    trainer = tiny_trainer(tmp_path / 'more', tmp_path / 'run', resume='auto')
    assert '60 images per epoch where there were 204: epoch 0 begins anew' in caplog.text
    assert trainer.train_iter.state()['batch'] == 0 and trainer.module.num_update == 5


def test_half_precision_goes_on_in_float32_and_back(sets, tmp_path):
    for number, scale in enumerate(('dynamic', 0.0, 256.0), 1):
        tiny_run(sets[False], tmp_path / 'run', max_steps=5 * number, resume='auto', fp16_scale=scale)
    arrays = saved_arrays(tmp_path / 'run', 15)
    assert {array.dtype for array in arrays.values()} == {np.dtype('<f4')}
    assert (arrays['weight/fc1_weight'] != arrays['weight/fc1_weight'].astype(np.float16)).any()


def test_a_stop_before_a_verification_makes_it_up_later(sets, tmp_path):
    settings = dict(TWO, verbose=8)
    tiny_run(sets[False], tmp_path / 'whole', max_steps=20, **settings)
    trainer = tiny_trainer(sets[False], tmp_path / 'run', max_steps=20, **settings)
    step = trainer.module.train_step

    def stopping(*arguments):
        trainer.stop.signal = signal.SIGTERM if trainer.module.num_update == 7 else None
        return step(*arguments)
    trainer.module.train_step = stopping
    assert trainer.fit() == 8 and trainer.stop.exit_code == 143
    assert trainer.verified_at == 0 and state_path(tmp_path / 'run', 8).is_dir()
    tiny_run(sets[False], tmp_path / 'run', max_steps=20, resume='auto', **settings)
    assert_same(saved_arrays(tmp_path / 'run', 20), saved_arrays(tmp_path / 'whole', 20))


def test_the_time_limit_saves_and_stops(sets, tmp_path, caplog):
    trainer = tiny_run(sets[False], tmp_path / 'run', max_steps=10**6, max_minutes=0.02)
    assert 'stopped by the time limit after step' in caplog.text and trainer.stop.exit_code == 0
    assert state_path(tmp_path / 'run', trainer.module.num_update).is_dir()


def test_states_come_every_so_many_steps_and_the_newest_stay(sets, tmp_path):
    tiny_run(sets[False], tmp_path / 'run', max_steps=11, ckpt_every=3, keep=3)
    assert sorted(path.name for path in (tmp_path / 'run' / 'model-state').iterdir()) == [
        'step-00000006', 'step-00000009', 'step-00000011']
    for name, settings in (('no', {'ckpt_every': 0}), ('none', {'ckpt': 0, 'ckpt_every': None})):
        tiny_run(sets[False], tmp_path / name, max_steps=3, **settings)
        assert not (tmp_path / name / 'model-state').exists()


@pytest.mark.parametrize('where', ['centers', 'backbone'])
def test_numbers_that_are_not_finite_are_not_saved(sets, tmp_path, where):
    trainer = tiny_trainer(sets[False], tmp_path / 'run', max_steps=4, ckpt_every=2)
    step = trainer.module.train_step

    def breaking(*arguments):
        statistics = step(*arguments)
        if trainer.module.num_update == 4 and where == 'centers':
            trainer.module.head.shards[0].blocks[1].momentum[2, 3] = float('inf')
        elif trainer.module.num_update == 4:
            trainer.module.backbone._module._exec_group.param_arrays[0][0][:] = float('nan')
        return statistics
    trainer.module.train_step = breaking
    with pytest.raises(UserError, match='(center|weight/.*) is not finite after step 4: .*--lr'):
        trainer.fit()
    assert [path.name for path in (tmp_path / 'run' / 'model-state').iterdir()] == ['step-00000002']
