"""The doctor: each check finds what it looks for, whatever is broken is one line, and the whole runs."""
import json
import os
import re
import subprocess
import sys
import time

import pytest

import train_parall
from common.errors import UserError
from recognition import devices, doctor, install_horovod
from recognition.devices import parse_devices
from recognition.doctor import FAIL, OK, WARN, Finding
from symbols import get_backbone
from tests.conftest import ROOT

CPU = parse_devices('cpu', None)


def verdicts(check, *arguments):
    return [finding.verdict for finding in doctor.run_check('it', check, *arguments)]


def texts(check, *arguments):
    return ' | '.join(finding.text for finding in doctor.run_check('it', check, *arguments))


@pytest.fixture(scope='module')
def whole_run(tmp_path_factory):
    """(exit code, lines, folder) of the doctor as a process of its own."""
    folder = tmp_path_factory.mktemp('doctor')
    done = subprocess.run([sys.executable, str(ROOT / 'train_parall.py'), '--doctor', '--devices', 'cpu:2',
                           '--models-root', str(folder / 'results' / 'models')], cwd=str(folder), text=True,
                          capture_output=True, timeout=120, check=False)
    assert 'Traceback' not in done.stderr
    return done.returncode, done.stdout.splitlines(), folder


def test_the_whole_is_a_verdict_per_line(whole_run):
    code, lines, _ = whole_run
    found = [re.fullmatch(r'(ok|warn|fail) +(\w+(?: \w+)?)  +(\S.*)', line).groups() for line in lines]
    assert {subject for _, subject, _ in found} == {
        'Python', 'packages', 'devices', 'processor', 'memory', 'shared memory', 'open files', 'images', 'disk',
        'Horovod', 'training'}
    assert code == ('fail' in [verdict for verdict, _, _ in found])
    assert [text for _, subject, text in found if subject == 'devices'] == ['cpu(0)', 'cpu(1)']
    assert ('ok', 'training') in {pair[:2] for pair in found} and '5 steps on cpu(0), cpu(1)' in lines[-1]


def test_nothing_is_left_behind(whole_run):
    assert list(whole_run[2].iterdir()) == []


def test_a_check_that_breaks_is_one_line_and_not_the_end():
    def check():
        yield OK, 'so far'
        raise ValueError('no\nsuch thing')
    assert list(doctor.run_check('it', check)) == [Finding(OK, 'it', 'so far'),
                                                   Finding(FAIL, 'it', 'ValueError: no such thing')]


def test_the_exit_code_is_that_of_failures():
    assert doctor.exit_code([Finding(OK, '', ''), Finding(WARN, '', '')]) == 0
    assert doctor.exit_code([Finding(OK, '', ''), Finding(FAIL, '', '')]) == 1


def test_the_command_says_what_failed(monkeypatch, capsys):
    def examine(request, models_root, num_threads, get_backbone):
        assert request.kind == 'cpu' and models_root == 'here' and num_threads == '1'
        yield Finding(OK, 'one', 'is fine')
        yield Finding(FAIL, 'other', 'is not')
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    monkeypatch.setattr(doctor, 'examine', examine)
    assert train_parall.doctor(['--devices', 'cpu', '--models-root', 'here']) == 1
    assert capsys.readouterr().out == 'ok    one            is fine\nfail  other          is not\n'


def test_a_python_that_was_not_tested(monkeypatch):
    monkeypatch.setattr(doctor.sys, 'version_info', (3, 14, 0))
    assert verdicts(doctor.check_python) == [WARN]


def test_opencv_without_its_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, 'cv2', None)
    assert verdicts(doctor.check_packages) == [FAIL]
    assert 'pip install opencv-python-headless' in texts(doctor.check_packages)


def test_a_broken_mxnet_fails_where_it_is_needed_and_nowhere_else(tmp_path):
    (tmp_path / 'mxnet.py').write_text('raise OSError("libcudart.so.11.0: cannot open shared object file")')
    done = subprocess.run([sys.executable, str(ROOT / 'train_parall.py'), '--doctor'], cwd=str(tmp_path), text=True,
                          capture_output=True, timeout=120, check=False,
                          env=dict(os.environ, PYTHONPATH=str(tmp_path), CUDA_VISIBLE_DEVICES=''))
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith('fail')]
    assert done.returncode == 1 and {'packages', 'training'} <= set(failed) and 'disk' not in failed
    assert 'libcudart.so.11.0' in done.stdout and 'Traceback' not in done.stderr


def test_a_gpu_that_is_not_there():
    request = parse_devices('gpu:0,63', None)
    assert verdicts(doctor.check_devices, request) == [FAIL] and '--devices gpu:0,63' in texts(
        doctor.check_devices, request)


def test_gpus_that_only_the_driver_sees(monkeypatch):
    monkeypatch.setattr('common.cuda_libraries.gpu_capabilities', lambda: [(8, 0)])
    if devices.count_gpus() == 0:
        assert verdicts(doctor.check_devices, CPU) == [OK, WARN]


def test_more_threads_than_cores():
    assert verdicts(doctor.check_processor, '1') == [OK] and verdicts(doctor.check_processor, '9999') == [WARN]


@pytest.mark.parametrize('free, verdict', [(None, WARN), (1 << 30, WARN), (1 << 34, OK)])
def test_memory(monkeypatch, free, verdict):
    monkeypatch.setattr(doctor, 'available_memory', lambda: free)
    assert verdicts(doctor.check_memory) == [verdict]


def test_shared_memory(monkeypatch, tmp_path):
    assert verdicts(doctor.check_shared_memory, str(tmp_path / 'none')) == [WARN]
    for size, verdict in ((64 << 20, WARN), (1 << 30, OK)):
        monkeypatch.setattr(doctor.shutil, 'disk_usage', lambda path, size=size: type('Usage', (), {'total': size}))
        assert verdicts(doctor.check_shared_memory, str(tmp_path)) == [verdict]
        assert ('--shm-size' in texts(doctor.check_shared_memory, str(tmp_path))) == (verdict == WARN)


@pytest.mark.parametrize('limit, verdict', [(256, WARN), (1024, OK), (-1, OK)])
def test_open_files(monkeypatch, limit, verdict):
    pytest.importorskip('resource')
    monkeypatch.setattr(doctor.resource, 'getrlimit', lambda what: (limit, limit))
    assert verdicts(doctor.check_open_files) == [verdict]


def test_slow_decoding(monkeypatch):
    monkeypatch.setattr(doctor, 'DECODING_SECONDS', 0.02)
    assert re.match(r'\d+ JPEGs of 112x112 a second', texts(doctor.check_images))
    monkeypatch.setattr('common.images.decode_rgb', lambda *arguments: time.sleep(0.002))
    assert verdicts(doctor.check_images) == [WARN]


def test_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, 'DISK_FILE', 1 << 20)
    found = doctor.disk_speeds(str(tmp_path))
    assert min(found) > 0 and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(doctor, 'disk_speeds', lambda folder: (5.0, 300.0))
    models_root = str(tmp_path / 'new' / 'models')
    assert verdicts(doctor.check_disk, models_root)[0] == WARN
    assert str(tmp_path) + ': 5 MB/s written, 300 MB/s read' in texts(doctor.check_disk, models_root)


def test_a_disk_that_refuses(monkeypatch, tmp_path):
    def full(folder):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(doctor, 'disk_speeds', full)
    assert verdicts(doctor.check_disk, str(tmp_path)) == [FAIL]
    assert 'No space left on device; choose another --models-root' in texts(doctor.check_disk, str(tmp_path))


def test_horovod_that_does_not_work(monkeypatch):
    def check(environ, seconds):
        raise UserError('two processes did not find each other')
    monkeypatch.setattr(doctor.importlib.util, 'find_spec', lambda name: object())
    monkeypatch.setattr('recognition.collective.horovod_capabilities', lambda: 'built with Gloo')
    monkeypatch.setattr(install_horovod, 'check', check)
    assert verdicts(doctor.check_horovod) == [OK, FAIL]


def test_without_horovod(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, 'find_spec', lambda name: None)
    assert verdicts(doctor.check_horovod) == [OK] and 'recognition.install_horovod' in texts(doctor.check_horovod)


def test_training_that_fails(monkeypatch):
    monkeypatch.setattr('recognition.trainer.Trainer._step', lambda *arguments: 1 / 0)
    assert texts(doctor.check_training, CPU, get_backbone) == 'ZeroDivisionError: division by zero'


def test_the_settings_of_its_training_are_settings():
    assert json.dumps(doctor.training_settings('folder'))
