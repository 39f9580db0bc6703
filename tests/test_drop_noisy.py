"""Images far from the main center of their class, by hand."""
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import drop_noisy
from common.class_rows import ClassRows, class_file, load_head_range
from common.errors import UserError
from common.mxnet_loader import mx
from recognition.checkpoint import save_head
from tests.conftest import ROOT
from tests.test_head import SOLVER, D, build

CENTERS = np.array([[[2, 0], [0, 3]], [[-1, 0], [0, -1]], [[1, 0], [0, 0]], [[1, 1], [1, -1]]], np.float32)


def towards(*degrees):
    """Rows (n, 2) of length 5 in these directions."""
    radians = np.radians(degrees)
    return (5 * np.stack([np.cos(radians), np.sin(radians)], axis=1)).astype(np.float32)


# Class 0 has centers at 0 and 90 degrees: 10, 20, -76 are nearest to the first, the main one; 88 to the second.
# Class 1 has them at 180 and 270: one image each, so the first is the main one.
# Class 2 has one at 0 and one of length 0: 74 degrees is nearest to the first, 100 and 120 to the second.
EMBEDDINGS = towards(10, 88, 20, -76, 181, 265, 74, 100, 120)
LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
KEYS = np.array([11, 12, 13, 14, 21, 22, 31, 32, 33])


@pytest.fixture
def saved(tmp_path):
    """A function that saves everything, two files of centers, and runs the tool; it returns the exit code."""
    def run(*flags, centers=CENTERS, **arrays):
        head = tmp_path / 'model-0001.head'
        head.mkdir()
        np.save(str(head / class_file('centers', 0, 1)), centers[:1])
        np.save(str(head / class_file('centers', 1, len(centers))), centers[1:])
        np.save(str(head / class_file('momentum', 0, len(centers))), centers)
        arrays = dict({'embeddings': EMBEDDINGS, 'labels': LABELS}, **arrays)
        argv = ['--centers', str(head), '--output', str(tmp_path / 'cleaned')] + list(flags)
        for name, array in arrays.items():
            np.save(str(tmp_path / (name + '.npy')), array, allow_pickle=True)
            argv += ['--' + name, str(tmp_path / (name + '.npy'))]
        return drop_noisy.main(argv)
    return run


def lines(folder, name):
    return [line.split('\t') for line in (folder / name).read_text().splitlines()]


def test_by_hand(saved, tmp_path, capsys):
    assert saved(keys=KEYS) == 0
    assert (tmp_path / 'cleaned' / 'kept.txt').read_text().split() == ['11', '13', '21']
    assert lines(tmp_path / 'cleaned', 'dropped.tsv') == [
        ['key', 'class', 'degrees'], ['31', '2', '90.00'], ['32', '2', '90.00'], ['33', '2', '90.00'],
        ['12', '0', '88.00'], ['22', '1', '85.00'], ['14', '0', '76.00']]
    assert lines(tmp_path / 'cleaned', 'counts.tsv') == [
        ['class', 'images', 'kept', 'main_center'], ['0', '4', '2', '0'], ['1', '2', '1', '0'], ['2', '3', '0', '1']]
    printed = capsys.readouterr().out
    assert '3 images kept, 6 dropped (66.67%)' in printed and '1 classes have no image left' in printed


@pytest.mark.parametrize('angle, kept', [('76.5', [0, 2, 3, 4]), ('80', [0, 2, 3, 4]), ('86', [0, 2, 3, 4, 5]),
                                         ('180', list(range(9))), ('0.5', [])])
def test_the_angle_and_rows_as_keys(saved, tmp_path, angle, kept):
    assert saved('--angle', angle) == 0
    assert [int(key) for key in (tmp_path / 'cleaned' / 'kept.txt').read_text().split()] == kept


def test_one_center_per_class(saved, tmp_path):
    assert saved(centers=CENTERS[:, 0]) == 0
    assert (tmp_path / 'cleaned' / 'kept.txt').read_text().split() == ['0', '2', '4', '6']


@pytest.mark.parametrize('kind', ['uint64', 'int32', '>i8'])
def test_other_whole_numbers(saved, tmp_path, kind):
    assert saved(labels=LABELS.astype(kind), keys=KEYS.astype(kind)) == 0
    assert (tmp_path / 'cleaned' / 'kept.txt').read_text().split() == ['11', '13', '21']


def test_an_archive_is_no_array(saved, tmp_path, capsys):
    np.savez(str(tmp_path / 'keys.npz'), KEYS)
    assert saved('--keys', str(tmp_path / 'keys.npz')) == 1
    assert 'keys.npz is no array written by numpy.save' in capsys.readouterr().err


def test_wrong_labels_are_found_with_trained_centers(tmp_path):
    """Three of the twenty images of each class show the next one; they gather at a center of their own, mostly."""
    rng = np.random.RandomState(0)
    labels, shown = np.arange(160) // 20, np.arange(160) // 20
    wrong = np.arange(160) % 20 >= 17
    shown[wrong] = (shown[wrong] + 1) % 8
    embeddings = (10 * np.eye(8, D)[shown] + 0.3 * rng.randn(160, D)).astype(np.float32)
    head = build('arcface', 8, 2, scale=16.0, sub_centers=3)
    for _ in range(100):
        batch = rng.permutation(160)[:32]
        head.forward_backward(mx.nd.array(embeddings[batch]), labels[batch], SOLVER)
    save_head(str(tmp_path / 'model'), 1, head)
    for name, array in {'embeddings': embeddings, 'labels': labels}.items():
        np.save(str(tmp_path / name), array)
    inputs = {'centers': 'model-0001.head', 'embeddings': 'embeddings.npy', 'labels': 'labels.npy', 'output': 'out'}
    assert drop_noisy.main(['--%s=%s' % (name, tmp_path / path) for name, path in inputs.items()]) == 0
    kept = {int(key) for key in (tmp_path / 'out' / 'kept.txt').read_text().split()}
    assert kept >= set(np.flatnonzero(~wrong))
    assert len(kept & set(np.flatnonzero(wrong))) <= 3                 # of 24


@pytest.mark.parametrize('arrays, message', [
    ({'labels': LABELS[:-1]}, '--labels: .*labels.npy is of 8 images, --embeddings of 9'),
    ({'labels': LABELS + 2}, 'row 6 of .* is class 4, .* has classes 0 to 3'),
    ({'labels': LABELS - 1}, 'row 0 of .* is class -1'),
    ({'labels': LABELS.astype(float)}, r'holds float64 of shape \(9,\); whole numbers of shape \(images,\) are'),
    ({'labels': LABELS.astype(object)}, 'labels.npy is no array written by numpy.save'),
    ({'embeddings': EMBEDDINGS[0]}, r'holds float32 of shape \(2,\); floats of shape \(images, numbers\) are'),
    ({'embeddings': EMBEDDINGS.repeat(2, axis=1)}, r'centers of shape \(2, 2\), .* embeddings of 4 numbers'),
    ({'embeddings': EMBEDDINGS * [[1]] * 5 + [[np.nan]]}, 'row 0 of .* is not finite'),
    ({'embeddings': EMBEDDINGS[:0], 'labels': LABELS[:0]}, 'holds no images'),
    ({'keys': KEYS[:3]}, '--keys: .* is of 3 images'),
])
def test_wrong_arrays_are_one_line(saved, tmp_path, capsys, arrays, message):
    assert saved(**arrays) == 1
    error = capsys.readouterr().err
    assert error.count('\n') == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(error)
    assert not (tmp_path / 'cleaned').exists()


@pytest.mark.parametrize('angle', ['0', '-5', '181', 'nan'])
def test_wrong_angles(saved, capsys, angle):
    assert saved('--angle', angle) == 2
    assert '--angle' in capsys.readouterr().err


def test_an_output_that_is_there_is_refused(saved, tmp_path, capsys):
    (tmp_path / 'cleaned').mkdir()
    assert saved() == 1
    assert 'is there already' in capsys.readouterr().err


def test_folders_without_all_centers(tmp_path):
    with pytest.raises(UserError, match='holds no files centers-000000000-000000010.npy'):
        ClassRows(tmp_path, 'centers')
    np.save(str(tmp_path / class_file('centers', 3, 5)), np.zeros((2, 4), np.float32))
    with pytest.raises(UserError, match='holds no centers of class 0'):
        ClassRows(tmp_path, 'centers')
    np.save(str(tmp_path / class_file('centers', 0, 3)), np.zeros((3, 2, 4), np.float32))
    with pytest.raises(UserError, match=r'000000005.npy holds rows of shape \(4,\), the files before it of \(2, 4\)'):
        ClassRows(tmp_path, 'centers')
    np.save(str(tmp_path / class_file('centers', 3, 5)), np.zeros((3, 2, 4), np.float32))
    with pytest.raises(UserError, match='holds 3 classes, its name says 2'):
        ClassRows(tmp_path, 'centers')
    (tmp_path / class_file('centers', 0, 3)).write_bytes(b'junk')
    with pytest.raises(UserError, match='is damaged'):
        load_head_range(tmp_path, 'centers', 0, 3)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.lists(st.integers(0, 100), max_size=20))
def test_rows_come_from_whatever_file_has_them(tmp_path_factory, sizes, wanted):
    folder, edges = tmp_path_factory.mktemp('head'), np.cumsum([0] + sizes)
    rows = np.arange(edges[-1] * 6, dtype=np.float32).reshape(-1, 2, 3)
    for start, stop in zip(edges[:-1], edges[1:]):
        np.save(str(folder / class_file('centers', start, stop)), rows[start:stop])
    classes = np.array(wanted, np.int64) % edges[-1]
    np.testing.assert_array_equal(ClassRows(folder, 'centers').take(classes), rows[classes])


def test_help_has_an_example():
    shown = subprocess.run([sys.executable, str(ROOT / 'common' / 'drop_noisy.py'), '--help'], stdout=subprocess.PIPE,
                           text=True, check=True).stdout
    assert 'example:\n  drop_noisy --centers' in shown
