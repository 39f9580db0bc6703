"""Shuffled sets: contents, order, processes, resuming, and what happens when files or records are bad."""
import logging
import os
import threading
import types
import weakref

import numpy as np
import pytest

from common.errors import UsageError, UserError
from common.face_record import Property, pack_class_id, write_property
from common.images import decode_rgb
from common.recordio import MAGIC_BYTES, pack
from recognition.image_iter import FaceImageIter, get_face_image_iter
from recognition.sequential_iter import SequentialFaceIter
from recognition.shuffle_buffer import Window
from tests.make_sets import cut, encode, jpeg, picture, plain_set, write_set
from tests.make_shuffled import in_parts, sequential_set

SHAPE = (3, 112, 112)
ROUGH = dict(rand_mirror=True, cutoff=20, color=2)             # every augmentation at once


@pytest.fixture
def open_iter():
    """SequentialFaceIter(path, batch_size, ...), closed after the test."""
    opened = []

    def make(path, batch_size, data_shape=SHAPE, **options):
        opened.append(SequentialFaceIter(path, batch_size, data_shape, **options))
        return opened[-1]
    yield make
    for images in opened:
        images.close()


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few records, windows of a few chunks."""
    monkeypatch.setattr('recognition.shuffle_buffer.MIN_CHUNK', 6000)
    monkeypatch.setattr('recognition.sequential_iter.MEGABYTE', 100)


def arrays(batch):
    return batch.data[0].asnumpy(), batch.label[0].asnumpy()


def epoch(images):
    """(images, labels) of the rest of an epoch; the next one is begun."""
    parts = [arrays(batch) for batch in images]
    images.reset()
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def labels(images):
    return epoch(images)[1].tolist()


def test_batches_hold_the_images_of_their_labels(tmp_path, open_iter, small_chunks):
    images = open_iter(sequential_set(tmp_path, range(40)), 4)
    for batch in images:
        data, label = arrays(batch)
        assert data.dtype == np.uint8 and label.dtype == np.int64 and batch.pad == 0
        for image, number in zip(data, label):
            assert (image == decode_rgb(jpeg(number), SHAPE[1:])).all()


def test_pixels_are_those_of_the_indexed_reader(tmp_path, open_iter):
    pictures = {key: encode(picture(key, size), '.png') for key, size in enumerate([(160, 160), (96, 96), (60, 130)])}
    pictures[3] = encode(picture(3)[..., 0], '.png')
    pictures[4] = encode(np.dstack([picture(4), picture(5)[..., 0]]), '.png')
    path = plain_set(tmp_path / 'indexed', [[i, 7] for i in range(5)], images=pictures)
    indexed = FaceImageIter(path, 5, SHAPE, shuffle=False)
    ours = open_iter(sequential_set(tmp_path / 'shuffled', range(5), pictures), 5, shuffle=False)
    for mine, theirs in zip(epoch(ours), epoch(indexed)):
        assert np.array_equal(mine, theirs)
    indexed.close()


@pytest.mark.parametrize('world_size', [1, 2, 3, 4])
def test_ranks_read_disjoint_parts_in_equal_steps(tmp_path, open_iter, world_size, small_chunks):
    path = sequential_set(tmp_path, range(103))
    ranks = [open_iter(path, 5, rank=rank, world_size=world_size) for rank in range(world_size)]
    steps = 103 // (5 * world_size)
    seen = []
    for _ in range(5):
        parts = [labels(images) for images in ranks]
        assert [len(part) for part in parts] == [5 * steps] * world_size
        everything = sum(parts, [])
        assert len(set(everything)) == len(everything)
        seen.append(everything)
    assert len(set(map(tuple, seen))) == 5
    assert len(set(sum(seen, []))) == 103                      # others are left out every time


def test_epochs_differ_and_seeds_repeat(tmp_path, open_iter, small_chunks):
    path = sequential_set(tmp_path, range(53))
    first, again, other = (open_iter(path, 4, seed=seed) for seed in (1, 1, 2))
    epochs = [labels(first) for _ in range(4)]
    assert [len(part) for part in epochs] == [52] * 4 and all(len(set(part)) == 52 for part in epochs)
    assert len({tuple(part) for part in epochs}) == 4
    assert [labels(again) for _ in range(4)] == epochs and labels(other) != epochs[0]
    assert all(sum(abs(a - b) == 1 for a, b in zip(part, part[1:])) < 25 for part in epochs)
    assert labels(open_iter(path, 4, shuffle=False)) == list(range(1, 53))


def test_threads_do_not_change_the_bytes(tmp_path, open_iter, small_chunks):
    path = sequential_set(tmp_path, range(64))
    one, four = (open_iter(path, 16, threads=threads, seed=3, **ROUGH) for threads in (1, 4))
    for _ in range(2):
        for ours, theirs in zip(epoch(one), epoch(four)):
            assert np.array_equal(ours, theirs)


def test_augmentation_is_applied(tmp_path, open_iter):
    path = sequential_set(tmp_path, range(16))
    plain = open_iter(path, 16)
    for change in (dict(rand_mirror=True), dict(cutoff=20), dict(color=1), dict(color=2)):
        changed = arrays(next(open_iter(path, 16, **change)))
        first = arrays(next(plain))
        plain.restore(dict(plain.state(), batch=0))
        assert np.array_equal(changed[1], first[1]) and not np.array_equal(changed[0], first[0])


@pytest.mark.parametrize('taken', [0, 1, 5, 12, 13, 17])
def test_restore_continues_with_the_remaining_batches(tmp_path, open_iter, taken, small_chunks):
    path = sequential_set(tmp_path, range(53), {7: b'broken'})
    first, second = (open_iter(path, 4, seed=9, **ROUGH) for _ in range(2))
    for _ in range(taken):
        if first.state()['batch'] == first.batches_per_epoch:
            first.reset()
        next(first)
    second.restore(first.state())
    if first.state()['batch'] == first.batches_per_epoch:
        first.reset()
        second.reset()
    for _ in range(2):
        for ours, theirs in zip(epoch(first), epoch(second)):
            assert np.array_equal(ours, theirs)
    assert first.state() == second.state()


@pytest.mark.parametrize('broken', [jpeg(5)[:2000], b'g' * 80, b''])
def test_a_corrupt_image_is_replaced_and_logged_once(tmp_path, open_iter, caplog, broken, small_chunks):
    path = sequential_set(tmp_path, range(53), {5: broken})
    images = open_iter(path, 4)
    for _ in range(5):
        found = labels(images)
        assert len(found) == 52 and set(found) == set(range(53)) - {5}
    assert caplog.text.count('corrupt image left out: record 5 of %s' % path) == 1


def test_without_a_remainder_an_image_comes_twice(tmp_path, open_iter):
    found = labels(open_iter(sequential_set(tmp_path, range(24), {5: b''}), 4))
    assert len(found) == 24 and set(found) == set(range(24)) - {5}


def test_too_many_corrupt_images_are_an_error(tmp_path, open_iter):
    path = sequential_set(tmp_path, range(24), {5: b'', 8: b'junk', 9: b'junk'})
    images = open_iter(path, 6)
    for _ in range(2):
        with pytest.raises(UserError, match='corrupt images in one epoch, 1 tolerated: .*record [589] of %s' % path):
            labels(images)


def test_a_payload_with_the_magic_inside(tmp_path, open_iter):
    image = jpeg(3)
    image += bytes(-len(image) % 4) + MAGIC_BYTES * 2 + b'\xff\xd9'
    data, label = epoch(open_iter(sequential_set(tmp_path, range(8), {3: image}), 8, shuffle=False))
    assert label.tolist() == list(range(8)) and (data[3] == decode_rgb(image, SHAPE[1:])).all()


def test_split_labels_reach_the_batch(tmp_path, open_iter):
    numbers = [3, 2**24 + 1, 2**25 + 7]
    path = write_set(tmp_path, {key: pack_class_id(number, jpeg(key), key, 'split24')
                                for key, number in enumerate(numbers)}, has_index=False)
    write_property(str(tmp_path), Property(2**25 + 8, 112, 112, {'label_format': 'split24', 'shuffled': '1'}))
    assert labels(open_iter(path, 3, shuffle=False)) == numbers


@pytest.mark.parametrize('world_size', [1, 2])
def test_several_files(tmp_path, open_iter, world_size, small_chunks):
    path = in_parts(tmp_path, [20, 19, 1, 14])
    ranks = [open_iter(path, 3, rank=rank, world_size=world_size) for rank in range(world_size)]
    for _ in range(2):
        found = sum((labels(images) for images in ranks), [])
        assert len(found) == len(set(found)) == 54
    assert labels(open_iter(path, 6, shuffle=False)) == list(range(54))


def test_a_set_without_property(tmp_path, open_iter, caplog):
    path = write_set(tmp_path, {key: pack(key, jpeg(key), key) for key in range(9)}, has_index=False)
    assert open_iter(path, 3).num_classes == 9
    assert 'no property file says that' in caplog.text


def test_a_shuffled_set_is_refused_by_the_indexed_reader(tmp_path):
    path = sequential_set(tmp_path, range(9))
    with pytest.raises(UserError, match='set is_shuffled_rec=True'):
        FaceImageIter(path, 3, SHAPE)


def test_wrong_labels_and_arguments(tmp_path, open_iter):
    path = sequential_set(tmp_path, [0, 1, 2, 4])
    write_property(str(tmp_path), Property(3, 112, 112, {'shuffled': '1'}))
    with pytest.raises(UserError, match=r'label 4 outside \[0, 3\) \(record 3 of %s\)' % path):
        open_iter(path, 2)
    write_property(str(tmp_path), Property(5, 112, 112, {'shuffled': '1'}))
    with pytest.raises(UserError, match='4 images < global batch 8 .4 per process x 2 processes'):
        open_iter(path, 4, world_size=2)
    with pytest.raises(UserError, match='num_classes is 7'):
        open_iter(path, 4, num_classes=7)
    with pytest.raises(UsageError, match='shuffle_chunk_size 0'):
        open_iter(path, 2, shuffle_chunk_size=0)
    with pytest.raises(UsageError, match='record_reader=native'):
        get_face_image_iter(types.SimpleNamespace(batch_size=2, is_shuffled_rec=True, record_reader='native'),
                            SHAPE, path)


def test_small_classes_can_be_left_out(tmp_path, open_iter, small_chunks):
    numbers = [0, 1, 1] + [2, 4] * 20
    images = open_iter(sequential_set(tmp_path, numbers), 4, images_filter=3)
    assert images.num_samples == 40 and sorted(labels(images)) == [2] * 20 + [4] * 20


def test_mixing_is_measured(tmp_path, open_iter, caplog, small_chunks):
    caplog.set_level(logging.INFO)
    path = sequential_set(tmp_path / 'sorted', np.repeat(np.arange(16), 8))
    labels(open_iter(path, 16))
    assert '90 % of neighbouring records have the same label' in caplog.text and 'rec2shufrec' in caplog.text
    caplog.clear()
    order = np.random.RandomState(0).permutation(np.repeat(np.arange(16), 8))
    images = open_iter(sequential_set(tmp_path / 'shuffled', order), 16)
    labels(images)
    labels(images)
    assert 'sorted by label' not in caplog.text
    assert caplog.text.count('of neighbouring images have the same label (5.51 % by chance)') == 1


def test_two_windows_at_most_are_in_memory(tmp_path, open_iter, small_chunks, monkeypatch):
    alive, most = weakref.WeakSet(), []

    class CountedWindow(Window):
        def __init__(self, *args):
            alive.add(self)
            most.append(len(alive))
            super().__init__(*args)

    monkeypatch.setattr('recognition.shuffle_buffer.Window', CountedWindow)
    images = open_iter(sequential_set(tmp_path, range(100)), 1, shuffle_chunk_size=1000)
    labels(images)
    labels(images)
    assert len(most) > 8 and max(most) == 2


def test_the_set_may_not_change(tmp_path, open_iter, small_chunks):
    path = sequential_set(tmp_path, range(53))
    images = open_iter(path, 4)
    labels(images)
    cut(path, 60000)
    for _ in range(2):
        with pytest.raises(UserError, match='%s changed while it was read' % path):
            labels(images)
            labels(images)


def test_configuration_is_passed_on(tmp_path):
    path = sequential_set(tmp_path, np.arange(24) % 4)
    cfg = types.SimpleNamespace(batch_size=4, num_classes=4, data_rand_mirror=True, data_cutoff=16, data_color=2,
                                data_images_filter=2, seed=7, rank=1, world_size=2, data_threads=1,
                                is_shuffled_rec=True, shuffle_chunk_size=3, record_reader='threaded')
    images = get_face_image_iter(cfg, SHAPE, path)
    expected = SequentialFaceIter(path, 4, SHAPE, num_classes=4, rand_mirror=True, cutoff=16, color=2,
                                  images_filter=2, seed=7, rank=1, world_size=2, threads=1, shuffle_chunk_size=3)
    try:
        for ours, theirs in zip(epoch(images), epoch(expected)):
            assert np.array_equal(ours, theirs)
    finally:
        images.close()
        expected.close()


def test_closing_ends_the_threads_and_gives_up_the_files(tmp_path, open_iter, small_chunks):
    handles = '/proc/self/fd'
    before = threading.active_count(), len(os.listdir(handles)) if os.path.isdir(handles) else 0
    images = open_iter(sequential_set(tmp_path, range(60)), 4, threads=3)
    next(images)
    assert threading.active_count() > before[0]
    images.close()
    images.close()
    assert before == (threading.active_count(), len(os.listdir(handles)) if os.path.isdir(handles) else 0)
