"""What a training measures on disk: one consistent history, whatever stopped it."""
import builtins
import json
import logging
import math
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import train_parall
from common.errors import UserError
from common.metrics_file import MetricsFile, read_metrics
from common.progress import StepBar
from common.verification import write_bin
from recognition.events import Events
from recognition.recorder import make_recorder
from tests.conftest import ROOT
from tests.make_sets import identity_set, jpeg
from tests.tiny_runs import tiny_run, tiny_trainer

MEASURED = {'loss', 'accuracy', 'lr', 'images_per_second', 'wait_share', 'sent_megabytes', 'embedding_norm',
            'center_norm', 'gradient_norm', 'own_cosine', 'other_cosine', 'memory_mib'}
VERIFIED = {'set', 'accuracy', 'accuracy_std', 'accuracy_flip', 'accuracy_flip_std', 'threshold', 'auc', 'eer', 'xnorm',
            'tar_at_far', 'seconds'}
EVERY_LINE = {'kind', 'step', 'epoch', 'time'}


@pytest.fixture(scope='module')
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp('sets') / 'faces'
    identity_set(folder, 12, 8)
    write_bin(str(folder / 'own.bin'), [jpeg(number, size=(12, 12)) for number in range(40)], [True, False] * 10)
    return folder


def metrics(folder):
    return read_metrics(folder / 'model-metrics.jsonl')


def of_kind(folder, kind):
    return [line for line in metrics(folder) if line['kind'] == kind]


def without_clock(lines):
    """What does not depend on how fast it went."""
    clock = 'time', 'images_per_second', 'wait_share', 'memory_mib', 'seconds'
    return [{name: value for name, value in line.items() if name not in clock} for line in lines]


def test_a_line_per_interval_and_per_verification(faces, tmp_path):
    tiny_run(faces, tmp_path, max_steps=10, frequent=2, verbose=5, val_targets=['own'], fp16_scale=64.0,
             num_devices=2, per_batch_size=6)
    lines = metrics(tmp_path)
    assert [(line['kind'], line['step']) for line in lines] == [
        ('run', 0), ('train', 2), ('train', 4), ('verification', 5), ('train', 6), ('train', 8), ('train', 10),
        ('verification', 10)]
    train, verified = of_kind(tmp_path, 'train')[-1], of_kind(tmp_path, 'verification')[-1]
    assert train.keys() == EVERY_LINE | MEASURED | {'loss_scale', 'skipped_steps'} and train['loss_scale'] == 64
    assert verified.keys() == EVERY_LINE | VERIFIED and verified['set'] == 'own'
    assert verified['tar_at_far'].keys() == {'0.1'}
    assert all(isinstance(train[name], (int, float)) and math.isfinite(train[name]) for name in MEASURED)
    assert train['epoch'] == 1 and -1 <= train['other_cosine'] <= 1 and train['memory_mib'] > 10
    assert any('memory plan' in text for text in lines[0]['plan']) and lines[0]['images_per_step'] == 12


def test_plain_softmax_has_no_cosines(faces, tmp_path):
    tiny_run(faces, tmp_path, max_steps=2, loss_name='softmax')
    assert of_kind(tmp_path, 'train')[0].keys() == EVERY_LINE | MEASURED - {'own_cosine', 'other_cosine'}


@pytest.mark.parametrize('begun', [True, False], ids=['torn last line', 'whole'])
def test_a_resumed_run_has_the_lines_of_one_that_was_never_stopped(faces, tmp_path, begun):
    settings = dict(frequent=2, verbose=6, val_targets=['own'], ckpt_every=5)
    tiny_run(faces, tmp_path / 'whole', max_steps=20, **settings)
    tiny_run(faces, tmp_path / 'parts', max_steps=18, **settings)
    path = tmp_path / 'parts' / 'model-metrics.jsonl'
    for newer in ('step-00000015', 'step-00000018'):                         # as if killed after step 18
        os.rename(str(tmp_path / 'parts' / 'model-state' / newer), str(tmp_path / newer))
    os.rename(str(tmp_path / 'step-00000015'), str(tmp_path / 'parts' / 'model-state' / 'step-00000015'))
    if begun:
        path.write_bytes(path.read_bytes() + b'{"kind": "train", "st')
    tiny_run(faces, tmp_path / 'parts', max_steps=20, resume='auto', **settings)
    runs = of_kind(tmp_path / 'parts', 'run')
    assert [line['step'] for line in runs] == [0, 15] and path.read_bytes().endswith(b'\n')
    ours, theirs = (without_clock(line for line in metrics(tmp_path / name) if line['kind'] != 'run')
                    for name in ('parts', 'whole'))
    assert [(line['kind'], line['step']) for line in ours] == [(line['kind'], line['step']) for line in theirs]
    for own, other in zip(ours, theirs):
        if own['step'] != 16:                        # its interval began with the resumed step 15, not with 14
            assert own == other


def test_a_fresh_start_leaves_the_earlier_file_beside_its_own(faces, tmp_path):
    tiny_run(faces, tmp_path, max_steps=3)
    tiny_run(faces, tmp_path, max_steps=2)
    assert len(of_kind(tmp_path, 'train')) == 2
    assert len(read_metrics(tmp_path / 'model-metrics-before.jsonl')) == 4


def test_a_refused_resume_changes_nothing(faces, tmp_path):
    tiny_run(faces, tmp_path, max_steps=3)
    before = (tmp_path / 'model-metrics.jsonl').read_bytes()
    with pytest.raises(UserError, match='emb_size'):
        tiny_trainer(faces, tmp_path, resume='auto', emb_size=24)
    assert (tmp_path / 'model-metrics.jsonl').read_bytes() == before


def test_other_ranks_write_nothing(faces, tmp_path):
    trainer = tiny_trainer(faces, tmp_path / 'run')
    trainer.module.head.collective.rank = 1
    recorder = make_recorder(SimpleNamespace(tensorboard=True), str(tmp_path / 'model'), trainer, [])
    recorder.write('train', 1, 0, {'loss': 1.0})
    recorder.step()
    recorder.close()
    trainer.recorder.close()
    assert [path.name for path in tmp_path.iterdir()] == ['run']


CHILD = '''
import sys, pathlib
from tests.tiny_runs import tiny_run
tiny_run(sys.argv[1], pathlib.Path(sys.argv[2]), max_steps=10**6, ckpt=0)
'''


def test_a_killed_run_leaves_whole_lines(faces, tmp_path):
    process = subprocess.Popen([sys.executable, '-c', CHILD, str(faces), str(tmp_path)], cwd=str(ROOT),
                               stderr=subprocess.DEVNULL)
    path = tmp_path / 'model-metrics.jsonl'
    while not path.exists() or path.read_bytes().count(b'\n') < 30:
        assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
    steps = [json.loads(line)['step'] for line in path.read_bytes().splitlines()]
    assert steps == list(range(len(steps)))


def test_numbers_that_json_does_not_have(tmp_path):
    file = MetricsFile(tmp_path / 'm.jsonl')
    file.write({'kind': 'train', 'step': 1, 'gradient_norm': math.inf, 'tar_at_far': {'0.1': math.nan}})
    file.close()
    assert read_metrics(tmp_path / 'm.jsonl') == [
        {'kind': 'train', 'step': 1, 'gradient_norm': None, 'tar_at_far': {'0.1': None}}]


@pytest.mark.parametrize('damage', [b'not json\n', b'\xff\xfe\n', b'[1]\n', b'{"kind": "train"}\n', b'\0\0\0\n', b'\n'])
def test_damaged_lines_are_left_out_and_said(tmp_path, caplog, damage):
    path = tmp_path / 'm.jsonl'
    path.write_bytes(b'{"kind": "train", "step": 1}\n' + damage + b'{"kind": "train", "step": 2}\n{"kind": "tr')
    assert [line['step'] for line in read_metrics(path)] == [1, 2]
    assert '1 of 3 lines are damaged' in caplog.text


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(UserError, match='cannot read .*none.jsonl: No such file'):
        read_metrics(tmp_path / 'none.jsonl')
    with pytest.raises(UserError, match='cannot write .*none.m.jsonl: No such file'):
        MetricsFile(tmp_path / 'none' / 'm.jsonl')


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='no /dev/full here')
def test_a_full_disk_does_not_end_the_training(caplog, monkeypatch, tmp_path):
    file = MetricsFile(tmp_path / 'm.jsonl')
    monkeypatch.setattr(builtins, 'open', lambda *args, open=open, **options: open('/dev/full', *args[1:], **options))
    for step in (3, 4):
        file.write({'kind': 'train', 'step': step})
    file.close()
    assert caplog.text.count('cannot write') == 1 and 'it ends before step 3' in caplog.text


# ---- TensorBoard

def events(folder):
    """[(tag, step)] of the events that TensorBoard shows."""
    loader = pytest.importorskip('tensorboardX.proto.event_pb2')
    shown = []
    for path in sorted(folder.iterdir()):
        raw, place = path.read_bytes(), 0
        while place < len(raw):
            size = int.from_bytes(raw[place:place + 8], 'little')
            event = loader.Event.FromString(raw[place + 12:place + 12 + size])
            place += size + 16
            if event.session_log.status == event.session_log.START:
                shown = [(tag, step) for tag, step in shown if step < event.step]
            shown += [(value.tag, event.step) for value in event.summary.value]
    return shown


def test_events_are_those_of_the_file(faces, tmp_path):
    pytest.importorskip('tensorboardX')
    settings = dict(tensorboard=True, val_targets=['own'], verbose=4, ckpt_every=3)
    tiny_run(faces, tmp_path, max_steps=4, **settings)
    os.rename(str(tmp_path / 'model-state' / 'step-00000004'), str(tmp_path / 'later'))
    tiny_run(faces, tmp_path, max_steps=6, resume='auto', **settings)
    shown = events(tmp_path / 'model-events')
    assert [step for tag, step in shown if tag == 'train/loss'] == [1, 2, 3, 4, 5, 6]
    assert [step for tag, step in shown if tag == 'verification/own/accuracy_flip'] == [4, 6]
    assert ('train/gradient_norm', 6) in shown and ('verification/own/tar_at_far/0.1', 6) in shown


def test_without_tensorboardx_one_line_says_so(faces, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorboardX', None)
    code = train_parall.main(['--network', 'demo', '--dataset', 'casia', '--dataset-path', str(faces), '--tensorboard',
                              '--devices', 'cpu', '--models-root', str(tmp_path / 'models')])
    error = [line for line in capsys.readouterr().err.splitlines() if 'INFO' not in line]
    assert code == 1 and len(error) == 1 and 'pip install tensorboardX' in error[0]
    assert not (tmp_path / 'models').exists()


def test_an_events_folder_that_cannot_be_written(tmp_path):
    pytest.importorskip('tensorboardX')
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='cannot write .*events: Not a directory'):
        Events(str(tmp_path / 'file' / 'events'), 0)


# ---- the terminal

def test_the_bar_is_not_torn_by_the_log(capsys):
    log = logging.getLogger('shardface')
    handler = logging.StreamHandler(sys.stderr)
    before, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        bar = StepBar(3, 6)
        for step in (4, 5, 6):
            bar.step()
            log.warning('line of step %d', step)
            bar.write({'kind': 'train', 'loss': 2.5, 'images_per_second': 99.0, 'wait_share': 0.25})
            bar.write({'kind': 'verification', 'set': 'own', 'accuracy_flip': 0.75})
        bar.close()
        assert log.handlers == [handler]
    finally:
        log.handlers, log.propagate = before, propagate
    written = capsys.readouterr().err
    for step in (4, 5, 6):
        assert '\rline of step %d\n' % step in written
    assert 'training 6/6' in written and 'loss 2.5000, 99.0 images/s, waiting 25%, own 0.7500' in written


def test_a_bar_of_a_run_without_an_end(capsys):
    bar = StepBar(0, math.inf)
    bar.step()
    bar.close()
    assert 'training: 1 steps' in capsys.readouterr().err


@pytest.mark.parametrize('flags, said', [
    ((), ['step 1/2', 'step 2/2', 'saved', 'done: 2 steps, own 0.']), (('--quiet',), ['done: 2 steps, own 0.'])])
def test_quiet_shows_the_last_line_only_and_a_file_all(tmp_path, capsys, flags, said):
    identity_set(tmp_path / 'set', 5, 4)
    write_bin(str(tmp_path / 'set' / 'own.bin'), [jpeg(number) for number in range(40)], [True, False] * 10)
    assert train_parall.main([
        '--network', 'demo', '--dataset', 'casia', '--dataset-path', str(tmp_path / 'set'), '--devices', 'cpu',
        '--per-batch-size', '3', '--max-steps', '2', '--frequent', '1', '--set', 'val_targets=own', '--set', 'report=0',
        '--models-root', str(tmp_path / 'models'), *flags]) == 0
    shown, path = capsys.readouterr().err, tmp_path / 'models' / 'demo-arcface-casia' / 'model.log'
    assert all(text in shown for text in said) and '%|' not in shown
    assert not flags or [line for line in shown.splitlines() if ' WARNING ' not in line] == shown.splitlines()[-1:]
    assert all(text in path.read_text() for text in ('step 1/2', 'done: 2 steps', 'memory plan'))
