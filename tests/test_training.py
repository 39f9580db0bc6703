"""The whole program, from the command line to the checkpoints, on small sets."""
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import train_parall
from common import rec2shufrec
from common.mxnet_loader import mx
from common.recordio import pack
from common.verification import write_bin
from tests.conftest import ROOT
from tests.make_real import write_real_set
from tests.make_sets import cut, identity_set, jpeg, plain_set

SMALL = ('--network', 'demo', '--dataset', 'casia', '--per-batch-size', '3', '--max-steps', '2', '--frequent', '1',
         '--devices', 'cpu:2', '--set', 'val_targets=', '--set', 'report=False')


@pytest.fixture
def train(tmp_path, capsys):
    """Run main() on a set; returns exit code and what was written to stderr. Results go to tmp_path/models."""
    def call(path_imgrec, *flags):
        code = train_parall.main([*SMALL, '--dataset-path', os.path.dirname(path_imgrec),
                                  '--models-root', str(tmp_path / 'models'), *flags])
        return code, capsys.readouterr().err
    return call


@pytest.mark.parametrize('loss', ['softmax', 'nsoftmax', 'arcface', 'cosface', 'combined'])
def test_every_loss_trains_and_saves(train, tmp_path, loss):
    code, log = train(identity_set(tmp_path / 'set', 5, 4), '--loss', loss)
    assert code == 0, log
    assert re.search(r'step 2/2 epoch 0 loss \d+\.\d+ accuracy', log)
    prefix = tmp_path / 'models' / ('demo-%s-casia' % loss) / 'model'
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(prefix), 1)
    assert symbol.list_outputs() == ['fc1_output']
    assert json.loads((prefix.parent / 'model-config.json').read_text())['num_classes'] == 5
    assert 'done: 2 steps' in (prefix.parent / 'model.log').read_text()
    heads = os.listdir(str(prefix) + '-0001.head')
    assert 'centers-000000000-000000003.npy' in heads and ('bias-000000003-000000005.npy' in heads) == (
        loss == 'softmax')


@pytest.mark.parametrize('flags, verified, saved', [
    (['--ckpt', '0'], 2, []), (['--ckpt', '2'], 2, ['0001', '0002']), (['--ckpt', '3'], 2, ['0000', '0001'])])
def test_verification_and_checkpoints(train, tmp_path, flags, verified, saved):
    path = identity_set(tmp_path / 'set', 5, 4)
    write_bin(str(tmp_path / 'set' / 'own.bin'), [jpeg(number) for number in range(14)], [True, False] * 3 + [True])
    code, log = train(path, '--set', 'val_targets=own,lfw', '--verbose', '2', '--max-steps', '4', *flags)
    assert code == 0, log
    assert log.count('verification own at step') == verified and 'lfw.bin: not there' in log
    names = os.listdir(str(tmp_path / 'models' / 'demo-arcface-casia'))
    assert sorted(name[6:10] for name in names if name.endswith('.params')) == saved


def test_partial_fc_by_one_flag(train, tmp_path):
    code, log = train(identity_set(tmp_path / 'set', 12, 2), '--sample-ratio', '0.3')
    assert code == 0, log
    code, log = train(str(tmp_path / 'set' / 'train.rec'), '--sample-ratio', '1.5')
    assert code == 2 and '--sample-ratio' in log


def test_half_precision_by_one_flag(train, tmp_path):
    path = identity_set(tmp_path / 'set', 5, 4)
    code, log = train(path, '--fp16-scale', '1.0')
    assert code == 0, log
    single = re.search(r'step 1/2 epoch 0 loss (\S+)', train(path, '--extra-model-name', 'single')[1]).group(1)
    half = re.search(r'step 1/2 epoch 0 loss (\S+)', log).group(1)
    assert float(half) == pytest.approx(float(single), rel=0.01)
    _, arguments, _ = mx.model.load_checkpoint(str(tmp_path / 'models' / 'demo-arcface-casia' / 'model'), 1)
    assert {array.dtype for array in arguments.values()} == {np.float32}


def test_a_loss_scale_that_overflows_does_no_harm(train, tmp_path):
    code, log = train(identity_set(tmp_path / 'set', 5, 4), '--fp16-scale', '1e8')
    assert code == 0 and 'loss scale 1e+08, 2 skipped' in log, log
    assert log.count('WARNING step 1: half precision gradients overflowed with loss scale 1e+08, backbone not upd') == 1


def test_dynamic_loss_scale_finds_one_that_trains(train, tmp_path):
    path = identity_set(tmp_path / 'set', 5, 4)
    code, log = train(path, '--fp16-scale', 'dynamic', '--max-steps', '12', '--lr', '0.01')
    scale, num_skipped = re.search(r'step 12/12 .*, loss scale (\d+), (\d+) skipped', log).groups()
    assert code == 0 and int(num_skipped) < 12 and int(scale) == 65536 >> int(num_skipped), log


def test_pretrained(train, tmp_path):
    path = identity_set(tmp_path / 'set', 5, 4)
    assert train(path)[0] == 0
    prefix = str(tmp_path / 'models' / 'demo-arcface-casia' / 'model')
    code, log = train(path, '--pretrained', prefix + ',1', '--pretrained-epoch', '7', '--extra-model-name', 'more')
    assert code == 0 and '; 0 re-initialised; 0 of the file skipped' in log
    code, log = train(path, '--pretrained', str(tmp_path / 'nothing'))
    assert code == 1 and 'no checkpoint at' in log


def test_plain_sets_with_larger_and_grey_images(train, tmp_path):
    path = plain_set(tmp_path / 'set', [number % 4 for number in range(16)], size=(160, 130))
    code, log = train(path)
    assert code == 0, log
    assert 'no file property' in log


def error_line(code, log, expected=1):
    """The one line of a clean error."""
    assert code == expected, log
    assert 'Traceback' not in log
    return [line for line in log.splitlines() if line.startswith('error: ')][0]


def test_a_label_outside_the_classes(train, tmp_path):
    path = identity_set(tmp_path / 'set', 3, 7, images={21: pack(4, jpeg(20), 21)})
    line = error_line(*train(path, '--max-steps', '50'))
    assert 'label 4' in line and '[0, 3)' in line and '21' in line


def test_corrupt_images_beyond_the_limit(train, tmp_path):
    broken = {key: pack((key - 1) // 4, b'\xff\xd8 garbage', key) for key in (3, 9, 14, 17)}
    line = error_line(*train(identity_set(tmp_path / 'set', 5, 4, images=broken), '--max-steps', '50'))
    assert 'corrupt images' in line and 'record' in line


def test_one_corrupt_image_is_passed_over(train, tmp_path):
    path = identity_set(tmp_path / 'set', 5, 4, images={3: pack(0, b'nothing', 3)})
    code, log = train(path, '--max-steps', '9')
    assert code == 0 and 'corrupt image left out' in log


@pytest.mark.parametrize('damage, named', [
    (lambda path: cut(path, 37), 'truncated'), (lambda path: open(path, 'wb').close(), 'empty'),
    (lambda path: os.remove(path[:-3] + 'idx'), 'train.idx')], ids=['cut', 'empty', 'no index'])
def test_broken_files(train, tmp_path, damage, named):
    path = identity_set(tmp_path / 'set', 5, 4)
    damage(path)
    assert named in error_line(*train(path)) and not list(tmp_path.glob('models/*/*.params'))


def test_a_batch_larger_than_the_set(train, tmp_path):
    line = error_line(*train(identity_set(tmp_path / 'set', 5, 4), '--per-batch-size', '64'))
    assert '20 images < global batch 128' in line


def test_from_another_folder_in_a_process_of_its_own(tmp_path):
    path = identity_set(tmp_path / 'set', 5, 4)
    command = [sys.executable, '-u', str(ROOT / 'train_parall.py'), *SMALL, '--dataset-path', os.path.dirname(path),
               '--models-root', 'here']
    done = subprocess.run(command, cwd=str(tmp_path), stderr=subprocess.PIPE, timeout=120, check=False,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'here' / 'demo-arcface-casia' / 'model-0001.params').is_file()


@pytest.mark.realdata
@pytest.mark.parametrize('shuffled', [False, True], ids=['indexed', 'shuffled'])
def test_real_faces_of_other_people_are_told_apart(shared_data, tmp_path, capsys, shuffled):
    """600 people trained, 226 others verified: a minute of training lifts accuracy well above chance."""
    write_real_set(shared_data / 'lfw_a', tmp_path / 'indexed', num_pairs=1200)
    folder = tmp_path / 'indexed'
    if shuffled:
        folder = tmp_path / 'shuffled'
        assert rec2shufrec.main(['--input', str(tmp_path / 'indexed'), '--output', str(folder), '--copy-vers']) == 0
    code = train_parall.main([
        '--network', 'demo', '--dataset', 'casia', '--dataset-path', str(folder), '--set', 'val_targets=real',
        '--set', 'is_shuffled_rec=%s' % shuffled,
        '--set', 'loss_s=32', '--devices', 'cpu:2', '--per-batch-size', '32', '--lr', '0.05', '--lr-steps', '200',
        '--max-steps', '250', '--verbose', '125', '--models-root', str(tmp_path / 'models')])
    log = capsys.readouterr().err
    assert code == 0, log
    accuracies = [float(text) for text in re.findall(r'with flip (\d\.\d+)', log)]
    assert len(accuracies) == 2 and accuracies[-1] > 0.64, log


@pytest.mark.slow
def test_the_demo(tmp_path, capsys):
    """The demo set is rendered, trained on and verified; accuracy rises."""
    code = train_parall.main(['--network', 'demo', '--dataset', 'demo', '--dataset-path', str(tmp_path / 'demo'),
                              '--devices', 'cpu:2', '--per-batch-size', '16', '--max-steps', '60', '--verbose', '30',
                              '--lr', '0.05', '--models-root', str(tmp_path / 'models')])
    log = capsys.readouterr().err
    assert code == 0, log
    accuracies = [float(text) for text in re.findall(r'with flip (\d\.\d+)', log)]
    assert len(accuracies) == 2 and accuracies[-1] > 0.55, log
