"""The command that verifies a trained network, its figures, its pictures."""
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import verification_command
from common.pair_scores import area_under_roc, equal_error_rate, roc
from common.verification import VerificationSet, load_bin, write_bin
from common.verification_plots import NUM_WORST, draw_all, worst_pairs
from tests.conftest import ROOT
from tests.make_models import random_model
from tests.make_sets import jpeg

PAIRS = 24


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A network, and two sets whose even pairs show one picture twice."""
    folder = tmp_path_factory.mktemp('verification')
    random_model('fmobilefacenet').write(str(folder / 'model'))
    images = [jpeg(number) for pair in range(PAIRS) for number in (2 * pair, 2 * pair + pair % 2)]
    for name in ('one', 'two'):
        write_bin(str(folder / (name + '.bin')), images, np.arange(PAIRS) % 2 == 0)
    return folder


def verify(folder, *flags):
    return verification_command.main(['--model', str(folder / 'model'), '--data-dir', str(folder),
                                      '--batch-size', '8'] + list(flags))


# Figures

def brute_force(distances, same):
    """Area and error from their definitions: all pairs of pairs, and all thresholds."""
    near, far = distances[same][:, None], distances[~same][None]
    area = np.mean((near < far) + 0.5 * (near == far))
    points = [(0.0, 0.0)] + [(np.mean(distances[~same] <= one), np.mean(distances[same] <= one))
                             for one in np.unique(distances)]
    grid = np.linspace(0, 1, 20001)
    false, true = np.array(points).T
    error = 1.0
    for start in range(len(points) - 1):
        x = false[start] + grid * (false[start + 1] - false[start])
        y = true[start] + grid * (true[start + 1] - true[start])
        best = np.argmin(np.abs(x - (1 - y)))
        if abs(x[best] - (1 - y[best])) < 1e-3:
            error = min(error, x[best])
    return area, error


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_area_and_equal_error_are_those_of_their_definitions(pairs):
    distances = np.array([distance / 2 for distance, _ in pairs])
    same = np.array([flag for _, flag in pairs])
    if same.all() or not same.any():
        assert np.isnan(area_under_roc(distances, same)) and np.isnan(equal_error_rate(distances, same))
        return
    area, error = brute_force(distances, same)
    assert area_under_roc(distances, same) == pytest.approx(area, abs=1e-12)
    assert equal_error_rate(distances, same) == pytest.approx(error, abs=2e-3)
    far, tar = roc(distances, same)
    assert far[0] == tar[0] == 0 and far[-1] == tar[-1] == 1
    assert (np.diff(far) >= 0).all() and (np.diff(tar) >= 0).all()


def test_area_and_equal_error_by_hand():
    """Same pairs at 0, 1, 3; different ones at 2, 3, 4: of 9 comparisons 7 are right and one is equal."""
    distances, same = np.array([0.0, 1, 3, 2, 3, 4]), np.array([1, 1, 1, 0, 0, 0], bool)
    assert area_under_roc(distances, same) == pytest.approx(7.5 / 9)
    assert equal_error_rate(distances, same) == pytest.approx(1 / 3)


# The command

def test_all_sets_of_a_folder(folder, tmp_path, capsys):
    assert verify(folder, '--json', str(tmp_path / 'found.json')) == 0
    printed, found = capsys.readouterr().out, json.loads((tmp_path / 'found.json').read_text())
    assert printed.count('24 pairs, 12 of them same') == 2 and 'one: ' in printed and 'two: ' in printed
    assert found['model'] == str(folder / 'model-0000.params') and found['image_size'] == [112, 112]
    one = found['sets']['one']
    # the same picture twice is always nearest
    assert one['accuracy'] == one['accuracy_flip'] == one['auc'] == 1.0 and one['eer'] == 0.0
    assert one['tar_at_far'] == {'0.1': 1.0} and one['images'] == 36 and one['pairs'] == 24 and one['folds'] == 10
    assert {key: value for key, value in one.items() if key != 'seconds'} == {
        key: value for key, value in found['sets']['two'].items() if key != 'seconds'}
    assert 'with flip %.4f' % one['accuracy_flip'] in printed and '%.3f' % one['xnorm'] in printed


def test_numbers_that_do_not_exist_are_null(folder, tmp_path):
    write_bin(str(tmp_path / 'same.bin'), [jpeg(0), jpeg(0)] * 3, [True] * 3)
    assert verify(folder, '--data-dir', str(tmp_path), '--json', str(tmp_path / 'x.json')) == 0
    found = json.loads((tmp_path / 'x.json').read_text())['sets']['same']
    assert found['auc'] is None and found['eer'] is None and found['tar_at_far'] == {'0.1': None}
    assert 'only same pairs' in found['note']


def test_pictures(folder, tmp_path):
    assert verify(folder, '--target', 'two,one,two', '--pictures', str(tmp_path / 'pictures')) == 0
    names = sorted(path.name for path in (tmp_path / 'pictures').iterdir())
    assert names == ['one-scores.png', 'one-worst.png', 'roc.png', 'two-scores.png', 'two-worst.png']
    for name in names:
        picture = cv2.imread(str(tmp_path / 'pictures' / name))
        assert min(picture.shape[:2]) > 300 and len(np.unique(picture)) > 20


class Result:
    """What the pictures need."""

    def __init__(self, distances, same):
        self.distances, self.same, self.threshold, self.auc = np.array(distances), np.array(same), 1.0, 0.5


def test_worst_pairs_come_first():
    accepts, rejects = worst_pairs(Result([0.5, 1.5, 0.2, 3.0, 2.0], [False, True, True, False, True]))
    assert accepts.tolist() == [0, 3] and rejects.tolist() == [4, 1, 2]
    assert [len(part) for part in worst_pairs(Result(np.arange(100.0), np.arange(100) % 2 == 0))] == [NUM_WORST] * 2


@pytest.mark.parametrize('same', [[True, True], [False, False]])
def test_pictures_of_one_kind_of_pairs(same, tmp_path):
    vset = VerificationSet('x', [jpeg(number) for number in range(4)], same)
    draw_all(str(tmp_path), [vset], {'x': Result([0.5, 1.5], same)})
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize('flags, code, text', [
    (['--target', 'lfw'], 1, 'has no lfw.bin; its sets are one, two'), (['--target', ' , '], 1, '--target is empty'),
    (['--data-dir', '/nowhere'], 1, 'is no folder'), (['--model', '/nowhere/x,1'], 1, 'no checkpoint at'),
    (['--image-size', '64x64'], 1, '--image-size'), (['--image-size', 'none'], 2, '--image-size none'),
    (['--batch-size', '0'], 2, '--batch-size 0'), (['--device', 'gpu:77'], 2, 'MXNet finds'),
    (['--json', '/nowhere/x.json'], 1, 'no folder to write'), (['--layer', 'fc9'], 1, 'fc9'),
    (['--pictures', '/'], 1, 'is there already')])
def test_refusals(flags, code, text, folder, capfd):
    before = sorted(folder.iterdir())
    assert verify(folder, *flags) == code
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith('error: ')]
    assert len(errors) == 1 and text in errors[0] and sorted(folder.iterdir()) == before


def test_folder_without_sets(folder, tmp_path, capsys):
    assert verify(folder, '--data-dir', str(tmp_path)) == 1
    assert 'has no .bin files; bin_builder makes sets' in capsys.readouterr().err


def test_pictures_without_matplotlib(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    assert verify(folder, '--pictures', str(tmp_path / 'x')) == 1
    assert 'pip install matplotlib' in capsys.readouterr().err and not (tmp_path / 'x').exists()


def test_run_by_its_path(folder, tmp_path):
    command = [sys.executable, str(ROOT / 'common' / 'verification.py'), '--model', str(folder / 'model,0'),
               '--data-dir', str(folder), '--target', 'one']
    done = subprocess.run(command, cwd=str(tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 'with flip 1.0000 +- 0.0000' in done.stdout


@pytest.mark.realdata
@pytest.mark.slow
def test_the_published_model_has_its_known_accuracy(shared_data, tmp_path):
    """All labels, heads and layers behind the embedding are left out by themselves."""
    from tests.make_real import real_pairs, split_people
    _, held = split_people(shared_data / 'lfw_a', 100)
    pairs = real_pairs(held, 600)
    write_bin(str(tmp_path / 'real.bin'), pairs.images, pairs.same)
    assert load_bin(str(tmp_path / 'real.bin')).same.sum() == 300
    assert verification_command.main(['--model', str(shared_data / 'models' / 'y1'), '--data-dir', str(tmp_path),
                                      '--json', str(tmp_path / 'x.json')]) == 0
    found = json.loads((tmp_path / 'x.json').read_text())['sets']['real']
    assert found['accuracy_flip'] > 0.98 and found['auc'] > 0.995 and found['eer'] < 0.02
