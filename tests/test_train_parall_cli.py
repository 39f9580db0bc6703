"""The command line up to the point where training begins: flags, presets, files, devices, exit codes."""
import importlib.util
import json
import logging
import os
import pathlib
import subprocess
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import train_parall
from common.errors import UsageError, UserError
from common.face_record import Property, write_property
from common.mxnet_loader import mx
from recognition.devices import Request, contexts, num_cpu_devices, parse_devices, resolve
from recognition.settings import SETTINGS, defaults
from tests.conftest import ROOT
from tests.make_sets import identity_set


@pytest.fixture
def face_set(tmp_path):
    """Folder of a set of 3 classes x 2 images of 112 x 112."""
    identity_set(tmp_path / 'set', 3, 2)
    return tmp_path / 'set'


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Call main() with flags; it returns exit code, what it wrote to stderr, and what training would have got."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.delenv('DMLC_NUM_WORKER', raising=False)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    begun = []
    monkeypatch.setattr(train_parall, 'train', lambda cfg, request, collective, show_bar: begun.append((cfg, request)))

    def call(*flags):
        code = train_parall.main(list(flags))
        return types.SimpleNamespace(code=code, error=capsys.readouterr().err, cfg=begun[-1][0] if begun else None,
                                     request=begun[-1][1] if begun else None)
    return call


def settings(*flags):
    return train_parall.build_config(train_parall.make_parser().parse_args(list(flags)))


def test_layers_of_the_configuration():
    cfg = settings('--network', 'y1', '--loss', 'cosface', '--dataset', 'retina', '--lr', '0.05', '--wd=0')
    assert (cfg.network, cfg.net_name, cfg.emb_size) == ('y1', 'fmobilefacenet', 128)
    assert (cfg.loss, cfg.loss_m2, cfg.loss_m3) == ('cosface', 0.0, 0.35)
    assert (cfg.num_classes, cfg.lr, cfg.wd, cfg.mom) == (93431, 0.05, 0.0, 0.9)


def test_flags_that_insightface_users_know():
    cfg = settings(*('--dataset emore --network r50 --loss arcface --models-root m --pretrained p --pretrained-epoch 7 '
                     '--ckpt 1 --verbose 100 --lr 0.01 --lr-steps 2,4 --wd 0.001 --mom 0.8 --frequent 5 '
                     '--kvstore local --per-batch-size 64 --extra-model-name try --fp16-scale 128').split())
    assert cfg.lr_steps == [2, 4] and cfg.fp16 and cfg.fp16_scale == 128.0 and cfg.pretrained_epoch == 7
    assert train_parall.prefix_of(cfg) == os.path.abspath('m/r50-arcface-emore-try/model')


def test_set_reaches_every_setting():
    for name, value in defaults().items():
        text = ','.join(map(str, value)) if isinstance(value, list) else str(value)
        if text:
            assert settings('--set', '%s=%s' % (name, text))[name] is not None or value is None


def test_the_last_set_wins():
    assert settings('--lr', '1', '--set', 'lr=2', '--set', 'lr=3').lr == 3.0


def test_saving_every_so_many_steps_or_minutes():
    values = [settings('--ckpt-every', text).ckpt_every for text in ('500', '30m', '0.50m', '0', 'None')]
    assert values == [500, '30m', '0.5m', 0, None]
    assert [settings('--set', 'ckpt_every=%s' % value).ckpt_every for value in values] == values


def test_value_with_an_equals_sign():
    assert settings('--set', 'dataset_path=a=b').dataset_path == 'a=b'


@pytest.mark.parametrize('flags, said', [
    (['--lr', '-1'], "--lr = '-1': a number > 0 is expected"),
    (['--lr-steps', '4,2'], "--lr-steps = '4,2': a list of whole numbers >= 1 in ascending order"),
    (['--per-batch-size', '1.5'], "--per-batch-size = '1.5'"),
    (['--network', 'r5O'], 'unknown network r5O (did you mean r50?); known: r18, r34'),
    (['--dataset', 'nothing'], 'unknown dataset nothing; known: emore'),
    (['--loss', 'arc'], 'unknown loss arc (did you mean arcface?); known: softmax'),
    (['--set', 'lr'], '--set lr: KEY=VALUE is expected'),
    (['--set', 'lrr=1'], '--set lrr=1: unknown setting lrr (did you mean lr?)'),
    (['--set', 'bn_mom=2'], "--set bn_mom = '2': a number >= 0 and < 1 is expected"),
    (['--fp16-scale', 'nan'], "--fp16-scale = 'nan'"),
    (['--fp16-scale', '-2'], "--fp16-scale = '-2': a number >= 0 or dynamic is expected"),
    (['--fp16-scale', 'inf'], "--fp16-scale = 'inf'"),
    (['--set', 'fp16_scale=auto'], "--set fp16_scale = 'auto'"),
    (['--ckpt-every', '2h'], "--ckpt-every = '2h': a whole number of steps, or minutes such as 30m, or None is exp"),
    (['--ckpt-every', '0m'], "--ckpt-every = '0m'"),
    (['--keep', '0'], "--keep = '0': a whole number >= 1 is expected"),
    (['--max-minutes', '-1'], "--max-minutes = '-1': a number >= 0 is expected"),
    (['--devices', 'tpu'], '--devices tpu: cpu, cpu:2'),
])
def test_wrong_flags_are_one_line_and_exit_code_2(command, flags, said):
    result = command(*flags)
    assert result.code == 2 and result.cfg is None
    assert said in result.error and result.error.startswith('error: ') and result.error.count('\n') == 1


@pytest.mark.parametrize('flags', [['--unknown'], ['--lr'], ['--lr-step', '2'], ['stray']])
def test_unknown_flags_are_exit_code_2(flags):
    with pytest.raises(SystemExit) as caught:
        train_parall.main(flags)
    assert caught.value.code == 2


@given(st.lists(st.text(max_size=12), max_size=4))
def test_any_command_line_is_taken_or_refused_cleanly(flags):
    try:
        settings(*flags)
    except (UsageError, SystemExit):
        pass


def test_facts_of_the_set_are_filled_in(command, face_set):
    result = command('--dataset-path', str(face_set), '--dataset', 'casia')
    assert result.code == 0, result.error
    assert result.cfg.num_classes == 3 and result.cfg.image_shape == [112, 112, 3]
    assert result.cfg.dataset_path == str(face_set) and set(result.cfg) == set(SETTINGS)


def test_relative_paths_start_at_the_working_directory(command, face_set):
    result = command('--dataset-path', 'set', '--dataset', 'casia')
    assert result.cfg.dataset_path == str(face_set)
    assert train_parall.prefix_of(result.cfg) == str(face_set.parent / 'models' / 'r100-arcface-casia' / 'model')


def test_missing_files_are_listed_with_absolute_paths(command, tmp_path):
    result = command('--dataset-path', 'no/where')
    assert result.code == 1
    for name in ('train.rec', 'train.idx'):
        assert str(tmp_path / 'no' / 'where' / name) in result.error


def test_contradiction_names_both_numbers(command, face_set):
    result = command('--dataset-path', str(face_set), '--dataset', 'casia', '--set', 'num_classes=5')
    assert result.code == 2 and 'num_classes is 5' in result.error and 'but 3 in %s' % face_set in result.error
    result = command('--dataset-path', str(face_set), '--dataset', 'casia', '--set', 'image_shape=112,96,3')
    assert result.code == 2 and '[112, 96, 3]' in result.error and '[112, 112, 3]' in result.error


def test_set_without_property(command, face_set):
    (face_set / 'property').unlink()
    result = command('--dataset-path', str(face_set), '--dataset', 'casia')
    assert result.code == 0 and result.cfg.num_classes is None and result.cfg.image_shape == [112, 112, 3]
    assert 'no file property' in result.error


def test_property_decides_where_the_preset_is_silent(command, face_set):
    write_property(str(face_set), Property(3, 96, 80))
    assert command('--dataset-path', 'set', '--dataset', 'casia').cfg.image_shape == [96, 80, 3]


def test_models_root_that_cannot_be_written(command, face_set, tmp_path):
    (tmp_path / 'file').write_text('')
    result = command('--dataset-path', 'set', '--dataset', 'casia', '--models-root', 'file/models')
    assert result.code == 1 and str(tmp_path / 'file') in result.error and '--models-root' in result.error


def test_nothing_is_left_behind_by_a_refused_run(command, tmp_path):
    command('--dataset-path', 'no/where')
    assert os.listdir(str(tmp_path)) == []


def test_parameter_server_is_refused(command, face_set, monkeypatch):
    monkeypatch.setenv('DMLC_NUM_WORKER', '2')
    result = command('--dataset-path', 'set', '--dataset', 'casia')
    assert result.code == 1 and 'DMLC_NUM_WORKER=2' in result.error
    assert 'horovodrun -np 2 sh -c "python train_parall.py' in result.error


def test_interrupt_is_exit_code_130(command, monkeypatch, face_set):
    def interrupted(cfg, request, collective, show_bar):
        raise KeyboardInterrupt
    monkeypatch.setattr(train_parall, 'train', interrupted)
    result = command('--dataset-path', 'set', '--dataset', 'casia')
    assert result.code == 130 and result.error.endswith('interrupted\n')


def test_logging_is_as_before_after_a_run(command, face_set):
    log = logging.getLogger('shardface')
    before = list(log.handlers), log.level, log.propagate
    command('--dataset-path', 'set', '--dataset', 'casia')
    assert (list(log.handlers), log.level, log.propagate) == before


def test_effective_configuration_is_kept(tmp_path):
    cfg = settings('--network', 'y1', '--set', 'val_targets=lfw')
    train_parall.save_config(cfg, str(tmp_path / 'model'))
    assert json.loads((tmp_path / 'model-config.json').read_text()) == cfg
    assert os.listdir(str(tmp_path)) == ['model-config.json']
    with pytest.raises(UserError, match='cannot write'):
        train_parall.save_config(cfg, str(tmp_path / 'none' / 'model'))


# A user's own config.py

OLDER_CONFIG = '''
from easydict import EasyDict as edict
config = edict()
config.emb_size = 256
config.workspace = 256
config.my_flag = 7
config.net_unit = 3
network = edict()
network.mine = edict()
network.mine.net_name = 'fresnet'
network.mine.num_layers = 18
dataset = edict()
dataset.faces = edict()
dataset.faces.dataset = 'faces'
dataset.faces.dataset_path = 'set'
dataset.faces.num_classes = 3
dataset.faces.image_shape = (112, 112, 3)
dataset.faces.val_targets = ['lfw']
loss = edict()
loss.arcface = edict()
loss.arcface.loss_name = 'margin_softmax'
loss.arcface.loss_s = 32.0
loss.arcface.loss_m2 = 0.4
default = edict()
default.network = 'mine'
default.dataset = 'faces'
default.loss = 'arcface'
default.lr = 0.2
default.lr_steps = '100,160'
def generate_config(_network, _dataset, _loss):
    for part in (loss[_loss], network[_network], dataset[_dataset]):
        for k, v in part.items():
            config[k] = v
            if k in default:
                default[k] = v
    config.loss = _loss
    config.network = _network
    config.dataset = _dataset
'''


def test_older_config_of_a_user(command, face_set, monkeypatch):
    path = face_set / 'config.py'
    path.write_text(OLDER_CONFIG)
    spec = importlib.util.spec_from_file_location('config', str(path))
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    monkeypatch.setattr(train_parall, 'config', older)
    result = command('--set', 'seed=3')
    cfg = result.cfg
    assert result.code == 0, result.error
    assert (cfg.network, cfg.num_layers, cfg.emb_size, cfg.loss_s, cfg.loss_m2) == ('mine', 18, 256, 32.0, 0.4)
    assert (cfg.lr, cfg.lr_steps, cfg.num_classes, cfg.seed) == (0.2, [100, 160], 3, 3)
    assert 'is_shuffled_rec=False' in result.error and 'unknown setting my_flag has no effect' in result.error
    assert 'not needed here: workspace' in result.error


def test_another_module_named_config(command, monkeypatch):
    stranger = types.ModuleType('config')
    stranger.__file__ = '/elsewhere/config.py'
    monkeypatch.setattr(train_parall, 'config', stranger)
    result = command()
    assert result.code == 1 and '/elsewhere/config.py has no presets' in result.error


# Devices

@pytest.mark.parametrize('flag, visible, kind, numbers', [
    ('', None, None, None), ('', '', 'cpu', [0]), ('', ' ', 'cpu', [0]), ('', '-1', 'cpu', [0]), ('', '7', 'gpu', [0]),
    ('', '0, 1', 'gpu', [0, 1]), ('', '4,2,3', 'gpu', [0, 1, 2]), ('', 'GPU-8f2a-1,MIG-3/1/0', 'gpu', [0, 1]),
    ('cpu', '0', 'cpu', [0]), ('cpu:3', None, 'cpu', [0, 1, 2]), ('gpu', None, 'gpu', None),
    ('gpu:1', '4,5', 'gpu', [1]), ('gpu:0, 2', None, 'gpu', [0, 2]), (' cpu:1 ', None, 'cpu', [0]),
])
def test_device_requests(flag, visible, kind, numbers):
    assert parse_devices(flag, visible)[:2] == (kind, numbers)


@pytest.mark.parametrize('flag, visible', [
    ('', 'x'), ('', '0,,1'), ('', '0,0'), ('', '0;1'), ('', '-2'), ('cpu:0', None), ('cpu:0,1', None), ('cpu:65', None),
    ('cpu:', None), ('gpu:', None), ('gpu:0,0', None), ('gpu:-1', None), ('gpu:a', None), ('0', None), ('CPU', None),
    ('gpu:0,', None), ('cpu,gpu', None), ('cpu:99999999999999999999', None),
])
def test_wrong_device_requests(flag, visible):
    with pytest.raises(UsageError) as caught:
        parse_devices(flag, visible)
    assert (flag or visible) in str(caught.value)


@pytest.mark.parametrize('flag, visible, num_gpus, devices', [
    ('', None, 0, [('cpu', 0)]), ('', None, 2, [('gpu', 0), ('gpu', 1)]), ('', '', 2, [('cpu', 0)]),
    ('', '5,6', 2, [('gpu', 0), ('gpu', 1)]), ('gpu', None, 1, [('gpu', 0)]), ('gpu:1', None, 2, [('gpu', 1)]),
    ('cpu:2', None, 2, [('cpu', 0), ('cpu', 1)]),
])
def test_devices_that_are_there(flag, visible, num_gpus, devices):
    assert resolve(parse_devices(flag, visible), num_gpus) == devices


@pytest.mark.parametrize('flag, visible, num_gpus, said', [
    ('', '0,1,2,3', 0, 'CUDA_VISIBLE_DEVICES=0,1,2,3: MXNet sees no GPU (the package mxnet is for CPUs only, '
                       'mxnet-cu112 for GPUs too); the CPU can stand in with --devices cpu:4'),
    ('', '7', 0, '--devices cpu:1'), ('gpu', None, 0, '--devices gpu: MXNet sees no GPU'),
    ('gpu:0,3', None, 2, 'MXNet sees GPUs 0 to 1 only'), ('gpu:1', None, 1, 'MXNet sees GPU 0 only'),
])
def test_devices_that_are_not_there(flag, visible, num_gpus, said):
    with pytest.raises(UserError) as caught:
        resolve(parse_devices(flag, visible), num_gpus)
    assert said in str(caught.value) and caught.value.exit_code == 1


def test_cores_are_shared_among_cpu_devices(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))
    for flag, threads in (('cpu:2', '4'), ('cpu:3', '2'), ('cpu:64', '1'), ('cpu', '8'), ('', '8')):
        environ = {}
        train_parall.set_threads(parse_devices(flag, None), environ)
        assert environ == {'OMP_NUM_THREADS': threads}
    environ = {'OMP_NUM_THREADS': '3'}
    train_parall.set_threads(parse_devices('cpu:2', None), environ)
    assert environ == {'OMP_NUM_THREADS': '3'}


def test_cpu_devices_are_counted_before_mxnet_is_there():
    assert num_cpu_devices(Request('cpu', [0, 1, 2], '')) == 3
    assert num_cpu_devices(Request('gpu', [0, 1, 2], '')) == num_cpu_devices(Request(None, None, '')) == 1


def test_contexts(monkeypatch):
    assert contexts(parse_devices('cpu:2', None)) == [mx.cpu(0), mx.cpu(1)]
    monkeypatch.setattr(mx.context, 'num_gpus', lambda: 2)
    assert contexts(parse_devices('', '5,6')) == [mx.gpu(0), mx.gpu(1)]


def test_driver_that_does_not_answer(monkeypatch):
    def num_gpus():
        raise mx.MXNetError('Traceback\nCUDA: driver version is insufficient')
    monkeypatch.setattr(mx.context, 'num_gpus', num_gpus)
    assert contexts(parse_devices('cpu', None)) == [mx.cpu(0)]
    with pytest.raises(UserError, match='driver version is insufficient'):
        contexts(parse_devices('', None))


# As a program

def run(*arguments, cwd):
    environment = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH',
                                                                                     'CUDA_VISIBLE_DEVICES')}
    return subprocess.run([sys.executable] + [str(argument) for argument in arguments], cwd=str(cwd), text=True,
                          env=environment, capture_output=True, timeout=60)


def test_help_from_another_folder_without_mxnet(tmp_path):
    (tmp_path / 'config.py').write_text('raise RuntimeError("the config.py of the working folder was imported")')
    result = run('-X', 'importtime', ROOT / 'train_parall.py', '--help', cwd=tmp_path)
    assert result.returncode == 0 and 'mxnet' not in result.stderr
    for name in SETTINGS:
        assert name in result.stdout.replace('-', '_'), name
    assert '(default: 100000,160000,220000)' in ' '.join(result.stdout.split())


def test_error_from_the_root_folder():
    result = run(ROOT / 'train_parall.py', '--dataset-path', 'no_such_set', cwd=pathlib.Path('/'))
    assert result.returncode == 1 and result.stderr.strip().splitlines()[-1].startswith('error: missing: /no_such_set')
    assert 'Traceback' not in result.stderr
