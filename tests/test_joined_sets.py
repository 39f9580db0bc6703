"""Several sets as one: labels, order, processes, resuming, and what is refused."""
import os

import numpy as np
import pytest
from easydict import EasyDict
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UsageError, UserError
from common.face_record import Property, pack_class_id, write_property
from common.images import decode_rgb
from common.label_table import SetLabels
from common.verification import write_bin
from recognition.build import load_targets
from recognition.dataset import absolute_folders, find_dataset
from recognition.image_iter import FaceImageIter
from recognition.joined_sets import JoinedChunks
from recognition.sequential_iter import SequentialFaceIter
from recognition.shuffle_buffer import EpochPlan
from tests.make_sets import identity_set, jpeg, plain_set, write_set
from tests.make_shuffled import in_parts, sequential_set
from tests.test_shuffle_buffer import StubTable
from tests.tiny_runs import saved_arrays, tiny_run

SHAPE = (3, 112, 112)
MODES = pytest.mark.parametrize('reader', [FaceImageIter, SequentialFaceIter], ids=['indexed', 'shuffled'])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of a few records, windows of a few chunks."""
    monkeypatch.setattr('recognition.shuffle_buffer.MIN_CHUNK', 6000)
    monkeypatch.setattr('recognition.sequential_iter.MEGABYTE', 200)


@pytest.fixture
def open_iter():
    opened = []

    def make(reader, paths, batch_size, **options):
        opened.append(reader(paths, batch_size, SHAPE, **options))
        return opened[-1]
    yield make
    for images in opened:
        images.close()


def numbered(reader, folder, numbers, images=()):
    """A set of the kind that a reader reads: image i has label numbers[i]."""
    if reader is SequentialFaceIter:
        return sequential_set(folder, numbers, images)
    path = plain_set(folder, numbers, images=dict(images))
    write_property(str(folder), Property(int(np.max(numbers)) + 1, 112, 112))
    return path


def epoch(images):
    """(images, labels) of the rest of an epoch; the next one is begun."""
    batches = list(images)
    images.reset()
    return tuple(np.concatenate([part[0].asnumpy() for part in parts])
                 for parts in zip(*((batch.data, batch.label) for batch in batches)))


def labels(images):
    return epoch(images)[1].tolist()


@MODES
def test_classes_stay_apart_and_images_keep_their_labels(tmp_path, open_iter, reader):
    paths = [numbered(reader, tmp_path / name, range(count)) for name, count in (('a', 20), ('b', 8), ('c', 12))]
    images = open_iter(reader, paths, 8)
    assert images.num_classes == images.num_samples == 40
    assert images.label_table == [SetLabels(str(tmp_path / name), first, count, count)
                                  for name, first, count in (('a', 0, 20), ('b', 20, 8), ('c', 28, 12))]
    data, found = epoch(images)
    assert sorted(found) == list(range(40)) and found.dtype == np.int64
    expected = {label: number for label, number in enumerate([*range(20), *range(8), *range(12)])}
    for image, label in zip(data, found):
        assert (image == decode_rgb(jpeg(expected[label]), SHAPE[1:])).all()
    assert epoch(open_iter(reader, paths, 8))[1].tolist() == found.tolist() != labels(images)


@MODES
@pytest.mark.parametrize('world_size', [1, 2, 3, 4])
def test_ranks_read_disjoint_parts_in_equal_steps(tmp_path, open_iter, reader, world_size):
    paths = [numbered(reader, tmp_path / name, range(count)) for name, count in (('a', 70), ('b', 33))]
    ranks = [open_iter(reader, paths, 5, rank=rank, world_size=world_size) for rank in range(world_size)]
    seen = set()
    for _ in range(6):
        parts = [labels(images) for images in ranks]
        assert {len(part) for part in parts} == {5 * (103 // (5 * world_size))}
        everything = sum(parts, [])
        assert len(set(everything)) == len(everything)
        seen |= set(everything)
    assert seen == set(range(103))


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 2**40))
def test_every_stretch_of_chunks_holds_each_set_in_proportion(counts, seed):
    table = JoinedChunks([StubTable([1] * count) for count in counts], [None] * len(counts))
    order = table.shuffled(np.random.RandomState(seed % 2**32))
    assert sorted(order) == list(range(sum(counts)))
    sources = np.array([table.source(chunk) for chunk in order])
    for number, count in enumerate(counts):
        places = np.flatnonzero(sources == number) / sum(counts) * count
        assert np.abs(places - np.arange(count)).max(initial=0) <= len(counts)


@given(counts=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=4),
       rank_count=st.integers(1, 4), seed=st.integers(0, 2**40), shuffle=st.booleans())
def test_plans_of_several_sets_cover_everything_once(counts, rank_count, seed, shuffle):
    table = JoinedChunks([StubTable(of_set) for of_set in counts], [None] * len(counts))
    if table.counts.sum() < rank_count:
        return
    plans = [EpochPlan(table, 2000, (seed, 0), rank, rank_count, shuffle) for rank in range(rank_count)]
    pieces = [piece for plan in plans for window in plan.windows for piece in window]
    rows = [(chunk, row) for chunk, skip, take in pieces for row in range(skip, skip + take)]
    assert sorted(rows) == [(chunk, row) for chunk, count in enumerate(table.counts) for row in range(count)]


def test_windows_hold_a_small_set_in_proportion_and_read_it_front_to_back(tmp_path, open_iter):
    paths = [sequential_set(tmp_path / 'large', range(300)), sequential_set(tmp_path / 'small', range(60))]
    found = labels(open_iter(SequentialFaceIter, paths, 36, shuffle_chunk_size=2000))
    shares = [sum(label >= 300 for label in found[start:start + 72]) / 72 for start in range(0, 360, 72)]
    assert len(found) == 360 and min(shares) > 0.06 and max(shares) < 0.34       # 1/6 of all images


@MODES
@pytest.mark.parametrize('taken', [0, 1, 7, 13])
def test_restore_continues_with_the_remaining_batches(tmp_path, open_iter, reader, taken):
    paths = [numbered(reader, tmp_path / 'a', range(30)), numbered(reader, tmp_path / 'b', range(23), {7: b'broken'})]
    first, second = (open_iter(reader, paths, 4, seed=9, rand_mirror=True, cutoff=20) for _ in range(2))
    for _ in range(taken):
        next(first)
    second.restore(first.state())
    for _ in range(2 if taken < 13 else 0):
        for ours, theirs in zip(epoch(first), epoch(second)):
            assert np.array_equal(ours, theirs)
    assert first.state() == second.state()


@MODES
def test_a_corrupt_image_of_the_second_set_is_replaced_and_named(tmp_path, open_iter, reader, caplog):
    paths = [numbered(reader, tmp_path / 'a', range(30)), numbered(reader, tmp_path / 'b', range(23), {5: b'broken'})]
    images = open_iter(reader, paths, 4)
    for _ in range(4):
        found = labels(images)
        assert len(found) == 52 and set(found) == set(range(53)) - {35}
    assert caplog.text.count('corrupt image left out: record 5 of %s' % paths[1]) == 1


@MODES
def test_small_classes_are_left_out_of_each_set(tmp_path, open_iter, reader):
    paths = [numbered(reader, tmp_path / 'a', [0, 1, 1, 1, 2] * 4 + [3]), numbered(reader, tmp_path / 'b', [0, 1] * 5)]
    images = open_iter(reader, paths, 3, images_filter=5)
    assert images.num_samples == 22 and images.num_classes == 6
    kept = labels(images)
    assert len(kept) == 21 and set(kept) == {1, 4, 5} and kept.count(1) >= 11


@MODES
def test_labels_above_float32_stay_exact(tmp_path, open_iter, reader):
    """Each set in its own format: a float32 label, and one of two numbers, behind 2**24 classes."""
    kind = {'shuffled': '1'} if reader is SequentialFaceIter else {}
    has_index = reader is FaceImageIter
    numbers = [1, 2**24 + 1, 2**25 + 7]
    large = write_set(tmp_path / 'large', {key: pack_class_id(number, jpeg(key), key, 'split24')
                                           for key, number in enumerate(numbers)}, has_index=has_index)
    write_property(str(tmp_path / 'large'), Property(2**25 + 8, 112, 112, dict(kind, label_format='split24')))
    small = numbered(reader, tmp_path / 'small', [0, 1, 1])
    images = open_iter(reader, [large, small], 6)
    assert images.num_classes == 2**25 + 10
    assert sorted(labels(images)) == numbers + [2**25 + 8, 2**25 + 9, 2**25 + 9]
    assert sorted(labels(open_iter(reader, [small, large], 6))) == [0, 1, 1] + [number + 2 for number in numbers]


def test_a_set_in_parts_beside_one_of_a_single_file(tmp_path, open_iter):
    paths = [in_parts(tmp_path / 'a', [20, 19, 1]), sequential_set(tmp_path / 'b', range(13))]
    assert sorted(labels(open_iter(SequentialFaceIter, paths, 53))) == list(range(53))
    assert labels(open_iter(SequentialFaceIter, paths, 53, shuffle=False)) == list(range(53))


@MODES
def test_sets_that_contradict_the_number_of_classes(tmp_path, open_iter, reader):
    paths = [numbered(reader, tmp_path / name, range(count)) for name, count in (('a', 5), ('b', 6))]
    with pytest.raises(UserError, match='num_classes is 12, but the sets have 5 . 6 = 11 classes: %s' % tmp_path):
        open_iter(reader, paths, 2, num_classes=12)
    write_property(str(tmp_path / 'b'), Property(5, 112, 112, {'shuffled': '1'}))
    with pytest.raises(UserError, match=r'label 5 outside \[0, 5\) \(record 5 of %s\)' % paths[1]):
        open_iter(reader, paths, 2)


def test_without_property_the_labels_are_counted_in_each_set(tmp_path, open_iter):
    paths = [plain_set(tmp_path / 'a', [0, 3]), identity_set(tmp_path / 'b', 2, 2)]
    assert open_iter(FaceImageIter, paths, 2).label_table[1].first_label == 4


@MODES
def test_a_training_from_several_sets_goes_on_with_the_same_order_only(tmp_path, reader):
    sets = [os.path.dirname(numbered(reader, tmp_path / name, np.arange(count) % 6))
            for name, count in (('a', 60), ('b', 42))]
    mode = {'is_shuffled_rec': reader is SequentialFaceIter}
    tiny_run(sets, tmp_path / 'whole', max_steps=14, **mode)
    tiny_run(sets, tmp_path / 'parts', max_steps=5, **mode)
    with pytest.raises(UserError, match='dataset_path was %s,%s there and is %s,%s now' % (*sets, *sets[::-1])):
        tiny_run(sets[::-1], tmp_path / 'parts', max_steps=14, resume='auto', **mode)
    tiny_run(sets, tmp_path / 'parts', max_steps=14, resume='auto', **mode)
    parts, whole = (saved_arrays(tmp_path / name, 14) for name in ('parts', 'whole'))
    for name in whole:
        np.testing.assert_array_equal(parts[name], whole[name], err_msg=name)


# What the configuration may say

def configuration(dataset_path, **settings):
    return EasyDict(dict(dataset='other', dataset_path=dataset_path, is_shuffled_rec=False, num_classes=None,
                         image_shape=None), **settings)


def found(dataset_path, **settings):
    cfg = configuration(dataset_path, **settings)
    find_dataset(cfg)
    return cfg


def test_folders_of_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = str(tmp_path / 'a'), str(tmp_path / 'b')
    for listed in ('a,b', ' a , b ', '[a,b]', "['a', \"b\"]", ['a', 'b'], ('a', b), [a, './b/']):
        assert absolute_folders(listed) == [a, b], listed
    assert absolute_folders('a') == absolute_folders(['a']) == absolute_folders('[a]') == [a]
    assert absolute_folders('') == absolute_folders([]) == absolute_folders('[]') == []
    (tmp_path / 'a,b').mkdir()
    assert absolute_folders('a,b') == [str(tmp_path / 'a,b')]
    for listed in ('a,', ',', 'a,,b', ['a', '']):
        with pytest.raises(UsageError, match='one of the folders has no name'):
            absolute_folders(listed)


def test_classes_are_added_up(tmp_path):
    folders = [os.path.dirname(identity_set(tmp_path / name, count, 2)) for name, count in (('a', 3), ('b', 4))]
    assert found(folders).num_classes == found(','.join(folders), num_classes=7).num_classes == 7
    assert found(folders).dataset_path == folders and found(folders[:1]).dataset_path == folders[0]
    with pytest.raises(UsageError, match='num_classes is 5 in the configuration, but 3 . 4 = 7 in .*/a/property . '):
        found(folders, num_classes=5)


def test_sets_that_do_not_go_together(tmp_path):
    a = os.path.dirname(identity_set(tmp_path / 'a', 3, 2))
    small = os.path.dirname(identity_set(tmp_path / 'small', 3, 2, size=(96, 96)))
    shuffled = os.path.dirname(sequential_set(tmp_path / 'shuffled', range(4)))
    with pytest.raises(UsageError, match=r'\[112, 112, 3\] in %s/property, but \[96, 96, 3\] in %s/pro' % (a, small)):
        found([a, small])
    (tmp_path / 'link').symlink_to(a)
    with pytest.raises(UsageError, match='dataset_path names %s twice' % a):
        found([a, str(tmp_path / 'link')])
    for is_shuffled_rec in (False, True):
        with pytest.raises(UserError, match=r'shuffled sets \(%s\) .* indexed ones \(%s\)' % (shuffled, a)):
            found([a, shuffled], is_shuffled_rec=is_shuffled_rec)
    with pytest.raises(UserError, match='missing: %s' % (tmp_path / 'none' / 'train.rec')):
        found([a, str(tmp_path / 'none')])
    with pytest.raises(UserError, match='missing file: %s' % (tmp_path / 'none' / 'train.rec')):
        found([shuffled, str(tmp_path / 'none')], is_shuffled_rec=True)
    with pytest.raises(UsageError, match='has no dataset_path'):
        found([])


def test_verification_sets_are_looked_for_in_every_folder(tmp_path, caplog):
    for name, targets in (('a', ['one']), ('b', ['one', 'two'])):
        (tmp_path / name).mkdir()
        for number, target in enumerate(targets):
            write_bin(str(tmp_path / name / (target + '.bin')), [jpeg(number)] * (2 + 2 * len(targets)),
                      [True] * (1 + len(targets)))
    cfg = configuration([str(tmp_path / 'a'), str(tmp_path / 'b')], val_targets=['one', 'two', 'three'])
    assert [len(target.same) for target in load_targets(cfg)] == [2, 3]
    assert '%s and %s differ' % (tmp_path / 'a' / 'one.bin', tmp_path / 'b' / 'one.bin') in caplog.text
    assert '%s, %s: not there' % (tmp_path / 'a' / 'three.bin', tmp_path / 'b' / 'three.bin') in caplog.text
