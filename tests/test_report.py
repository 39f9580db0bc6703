"""The page that shows a training: all of it in one file, whatever was measured."""
import base64
import json
import re
import sys

import cv2
import numpy as np
import pytest

import train_parall
from common.errors import UserError
from recognition import report
from recognition.curves import MOST_POINTS, PICTURES, curves_of, draw_pictures, thinned
from recognition.report import report_at_end, write_report
from tests.make_sets import identity_set


def train_line(step, **more):
    return dict({'kind': 'train', 'step': step, 'epoch': 0, 'time': 1.7e9 + step, 'loss': 30.0 / step, 'accuracy': 0.5,
                 'lr': 0.1, 'images_per_second': 99.5, 'wait_share': 0.02, 'embedding_norm': 20.0, 'center_norm': 6.0,
                 'gradient_norm': 2.0, 'own_cosine': 0.3, 'other_cosine': 0.1, 'memory_mib': 500.0,
                 'sent_megabytes': 0.0}, **more)


def verification_line(step, name='lfw', **more):
    return dict({'kind': 'verification', 'step': step, 'epoch': 0, 'time': 1.7e9, 'set': name, 'accuracy': 0.8,
                 'accuracy_std': 0.01, 'accuracy_flip': 0.75 + step / 1e4, 'accuracy_flip_std': 0.02, 'xnorm': 20.0,
                 'threshold': 1.5, 'tar_at_far': {'0.1': 0.9}, 'seconds': 2.0}, **more)


def run_line(step=0, **more):
    return dict({'kind': 'run', 'step': step, 'epoch': 0, 'time': 1.7e9, 'processes': 1, 'devices': ['cpu(0)'],
                 'images_per_step': 32, 'versions': {'mxnet': '1.9.1'}, 'plan': ['memory plan: r50']}, **more)


def write(folder, lines, config=None, name='model'):
    folder.mkdir(exist_ok=True)
    (folder / (name + '-metrics.jsonl')).write_text(''.join(json.dumps(line) + '\n' for line in lines))
    if config is not None:
        (folder / (name + '-config.json')).write_text(json.dumps(config))
    return folder / name


def pictures_of(page):
    return [cv2.imdecode(np.frombuffer(base64.b64decode(text), np.uint8), cv2.IMREAD_COLOR)
            for text in re.findall(r'src="data:image/png;base64,([^"]+)"', page)]


def test_everything_is_in_the_one_file(tmp_path):
    pytest.importorskip('matplotlib')
    lines = [run_line()] + [train_line(step) for step in range(20, 201, 20)] + [verification_line(100)]
    lines += [run_line(200), train_line(220), verification_line(200, accuracy_flip=0.7)]
    page = write_report(write(tmp_path / 'r50', lines, {'lr': 0.05, 'seed': 0})).read_text(encoding='utf-8')
    assert [len(picture) > 200 and picture.std() > 5 for picture in pictures_of(page)] == [True] * 3
    assert set(re.findall(r'(?:src|href)="([^"]{,15})', page)) == {'data:image/png;'} and 'http' not in page
    assert '<td>best verification on lfw</td><td>0.7600 at step 100</td>' in page and 'memory plan: r50' in page
    assert '<tr class="changed"><td>lr</td><td>0.05</td>' in page and '<tr><td>seed</td><td>0</td>' in page
    assert 'mxnet 1.9.1' in page and page.count('<td>cpu(0)</td>') == 2


@pytest.mark.parametrize('lines', [
    [train_line(1)], [train_line(1, **{name: None for name in train_line(1) if name not in ('kind', 'step', 'loss')})],
    [train_line(5, loss=0.0, lr=0.0), train_line(10)], [train_line(1), verification_line(1, accuracy_flip=None)],
    [train_line(1), verification_line(1, name='$x^{_', tar_at_far=None, accuracy_flip_std=None, xnorm=None)],
    [run_line(plan=['<b>']), train_line(1, loss_scale=64.0, skipped_steps=3, sent_megabytes=2.5, gpu_memory_mib=9.0)],
], ids=['one line', 'nulls', 'zeros on a log scale', 'no accuracy', 'odd name', 'half precision, two processes'])
def test_whatever_was_measured_it_is_drawn(tmp_path, lines):
    pytest.importorskip('matplotlib')
    assert pictures_of(write_report(write(tmp_path / 'run', lines)).read_text(encoding='utf-8'))


def test_text_is_escaped(tmp_path):
    pytest.importorskip('matplotlib')
    bad = '<script>alert("x")</script>'
    lines = [run_line(devices=[bad], versions={bad: bad}, plan=[bad]), train_line(1, epoch=bad),
             verification_line(1, bad)]
    page = write_report(write(tmp_path / 'a<b>"c', lines, {bad: bad})).read_text(encoding='utf-8')
    assert '<script' not in page and '<b>' not in page and page.count('&lt;script&gt;') >= 8


def test_long_curves_are_thinned_to_means_and_ranges():
    steps, values = list(range(1, 10001)), [float(number % 7) for number in range(10000)]
    groups = list(thinned(steps, values))
    assert len(groups) <= MOST_POINTS and groups[-1][0] == 10000
    assert {(low, high) for _, _, low, high in groups} == {(0.0, 6.0)}
    assert np.average([mean for _, mean, _, _ in groups]) == pytest.approx(np.mean(values), rel=1e-3)
    lines = [train_line(1, loss=None), train_line(2), verification_line(2)]
    assert curves_of(PICTURES['Learning'][0], lines) == [('loss', (2,), (15.0,))]


@pytest.mark.parametrize('content, said', [(None, 'cannot read .*model-metrics.jsonl: No such file'),
                                           ('', 'no interval'), ('{"kind": "train", "st', 'no interval')])
def test_nothing_to_show(tmp_path, content, said):
    if content is not None:
        (tmp_path / 'model-metrics.jsonl').write_text(content)
    with pytest.raises(UserError, match=said):
        write_report(tmp_path / 'model')
    assert not (tmp_path / 'report.html').exists()


def test_the_command(tmp_path, capsys):
    pytest.importorskip('matplotlib')
    prefix = write(tmp_path / 'run', [train_line(1), train_line(2)])
    (tmp_path / 'pictures').mkdir()
    assert report.main([str(tmp_path / 'run'), '--pictures', str(tmp_path / 'pictures')]) == 0
    assert report.main([str(prefix)]) == 0 and (tmp_path / 'run' / 'report.html').is_file()
    assert 'learning.png' in {path.name for path in (tmp_path / 'pictures').iterdir()}
    assert report.main([str(prefix), '--pictures', str(tmp_path / 'none')]) == 1
    assert report.main([str(tmp_path / 'none')]) == 1
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]) == 2


def test_without_matplotlib_the_command_says_so_and_a_training_ends_well(tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    prefix = write(tmp_path / 'run', [train_line(1)])
    assert report.main([str(prefix)]) == 1
    assert 'error: report.html needs matplotlib' in capsys.readouterr().err
    report_at_end(prefix)
    assert 'no report: report.html needs matplotlib' in caplog.text and 'pip install matplotlib' in caplog.text


def test_a_library_that_fails_does_no_harm(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(report, 'draw_pictures', lambda lines: 1 // 0)
    report_at_end(write(tmp_path / 'run', [train_line(1)]))
    assert 'no report: integer division' in caplog.text


def test_no_line_at_all_has_no_picture():
    pytest.importorskip('matplotlib')
    assert draw_pictures([run_line()]) == {}


def test_a_training_ends_with_its_report(tmp_path, capsys):
    pytest.importorskip('matplotlib')
    identity_set(tmp_path / 'set', 5, 4)
    assert train_parall.main(['--network', 'demo', '--dataset', 'casia', '--dataset-path', str(tmp_path / 'set'),
                              '--devices', 'cpu', '--per-batch-size', '3', '--max-steps', '2', '--frequent', '1',
                              '--set', 'val_targets=', '--models-root', str(tmp_path / 'models')]) == 0
    page = (tmp_path / 'models' / 'demo-arcface-casia' / 'report.html').read_text(encoding='utf-8')
    assert 'memory plan: demo' in page and len(pictures_of(page)) == 3
    assert 'report.html' in capsys.readouterr().err
