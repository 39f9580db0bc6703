"""Training batches: contents, order, processes, resuming, and what happens when records are bad."""
import logging
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UsageError, UserError
from common.face_record import Property, pack_class_id, write_property
from common.images import decode_rgb
from common.mxnet_loader import mx
from common.recordio import pack
from recognition.image_iter import EpochOrder, FaceImageIter, epoch_order, get_face_image_iter
from tests.conftest import ROOT
from tests.make_sets import edit_index, encode, identity_set, jpeg, picture, plain_set, write_set

SHAPE = (3, 112, 112)
ROUGH = dict(rand_mirror=True, cutoff=20, color=2)             # every augmentation at once


@pytest.fixture
def open_iter():
    """FaceImageIter(path, batch_size, ...), closed after the test."""
    opened = []

    def make(path, batch_size, data_shape=SHAPE, **options):
        opened.append(FaceImageIter(path, batch_size, data_shape, **options))
        return opened[-1]
    yield make
    for images in opened:
        images.close()


def arrays(batch):
    return batch.data[0].asnumpy(), batch.label[0].asnumpy()


def epoch(images):
    """(images, labels) of the rest of an epoch; the next one is begun."""
    parts = [arrays(batch) for batch in images]
    images.reset()
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def numbered_set(folder, count, **replaced):
    """Image i has label i: labels tell which records were read."""
    return plain_set(folder, range(count), **replaced)


def labels(images):
    return epoch(images)[1].tolist()


def test_batches_hold_the_images_of_their_labels(tmp_path, open_iter):
    images = open_iter(identity_set(tmp_path, 6, 1), 2)
    assert [(desc.name, desc.shape, np.dtype(desc.dtype)) for desc in images.provide_data + images.provide_label] == [
        ('data', (2,) + SHAPE, np.uint8), ('softmax_label', (2,), np.int64)]
    for batch in images:
        data, label = arrays(batch)
        assert data.dtype == np.uint8 and label.dtype == np.int64 and batch.pad == 0
        for image, number in zip(data, label):
            assert (image == decode_rgb(jpeg(number), SHAPE[1:])).all()


def test_identity_layout_has_images_only(tmp_path, open_iter):
    images = open_iter(identity_set(tmp_path, 5, 5), 5)
    assert images.num_samples == 25 and images.batches_per_epoch == 5
    assert sorted(labels(images)) == sorted(list(range(5)) * 5)


def test_vector_labels_and_other_sizes(tmp_path, open_iter):
    shapes = [(160, 160), (96, 96), (60, 130)]
    images = {key: encode(picture(key, size), '.png') for key, size in enumerate(shapes)}
    images[3] = encode(picture(3)[..., 0], '.png')
    images[4] = encode(np.dstack([picture(4), picture(5)[..., 0]]), '.png')
    found = open_iter(plain_set(tmp_path, [[i, 7] for i in range(5)], images=images), 5, shuffle=False)
    data, label = arrays(next(found))
    assert label.tolist() == list(range(5))
    for number in range(5):
        assert (data[number] == decode_rgb(images[number], SHAPE[1:])).all()


def test_split_labels_reach_the_batch(tmp_path, open_iter):
    numbers = [3, 2**24 + 1, 2**25 + 7]
    path = write_set(tmp_path, {key: pack_class_id(number, jpeg(key), key, 'split24')
                                for key, number in enumerate(numbers)})
    write_property(str(tmp_path), Property(2**25 + 8, 112, 112, {'label_format': 'split24'}))
    assert labels(open_iter(path, 3, shuffle=False)) == numbers


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 60), batch_size=st.integers(1, 7), world_size=st.integers(1, 4), seed=st.integers())
def test_ranks_partition_the_epoch(count, batch_size, world_size, seed):
    order = epoch_order(count, seed, 3)
    ranks = [EpochOrder(order, batch_size, rank, world_size) for rank in range(world_size)]
    steps = count // (batch_size * world_size)
    assert {rank.batches for rank in ranks} == {steps}
    seen = [position for rank in ranks for step in range(steps) for position in rank.batch(step)]
    assert len(seen) == len(set(seen)) == steps * batch_size * world_size <= count
    assert seen != [] or steps == 0
    assert set(seen) == set(order[:len(seen)].tolist())       # only the end of the permutation is dropped
    if steps:
        spares = [rank.spare(number) for number in range(count) for rank in ranks]
        assert set(spares[:count - len(seen)]) == set(order[len(seen):].tolist())


@given(st.integers(0, 2**63), st.integers(0, 1000), st.integers(2, 300))
def test_order_is_a_permutation_of_seed_and_epoch(seed, epoch, count):
    order = epoch_order(count, seed, epoch)
    assert order.dtype == np.int32 and np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(order, epoch_order(count, seed, epoch))


def test_global_batches_do_not_depend_on_the_processes(tmp_path, open_iter):
    path = numbered_set(tmp_path, 25)
    whole = open_iter(path, 12, seed=5, **ROUGH)
    parts = [open_iter(path, 4, seed=5, rank=rank, world_size=3, **ROUGH) for rank in range(3)]
    assert whole.batches_per_epoch == parts[0].batches_per_epoch == 2
    for _ in range(2):
        split = [[arrays(batch) for batch in part] for part in parts]
        for step, batch in enumerate(whole):
            for ours, theirs in zip(arrays(batch), zip(*(part[step] for part in split))):
                assert np.array_equal(ours, np.concatenate(theirs))
        for images in [whole] + parts:
            images.reset()


def test_epochs_differ_and_seeds_repeat(tmp_path, open_iter):
    path = numbered_set(tmp_path, 25)
    first, again, other = (open_iter(path, 4, seed=seed) for seed in (1, 1, 2))
    epochs = [labels(first) for _ in range(4)]
    assert [len(part) for part in epochs] == [24] * 4 and all(len(set(part)) == 24 for part in epochs)
    assert len({tuple(part) for part in epochs}) == 4
    assert [labels(again) for _ in range(4)] == epochs and labels(other) != epochs[0]
    assert labels(open_iter(path, 4, shuffle=False)) == list(range(24))


def test_threads_do_not_change_the_bytes(tmp_path, open_iter):
    path = numbered_set(tmp_path, 64)
    one, four = (open_iter(path, 16, threads=threads, seed=3, **ROUGH) for threads in (1, 4))
    for _ in range(2):
        for ours, theirs in zip(epoch(one), epoch(four)):
            assert np.array_equal(ours, theirs)


def test_reset_at_the_beginning_changes_nothing(tmp_path, open_iter):
    path = numbered_set(tmp_path, 9)
    images, other = open_iter(path, 3), open_iter(path, 3)
    images.reset()
    images.reset()
    assert images.epoch == 0 and labels(images) == labels(other) and images.epoch == 1
    next(images)
    images.reset()
    labels(other)
    assert images.epoch == 2 and labels(images) == labels(other)


@pytest.mark.parametrize('taken', [0, 1, 3, 8])
def test_restore_continues_with_the_remaining_batches(tmp_path, open_iter, taken):
    path = numbered_set(tmp_path, 25, images={7: b'broken'})
    first, second = (open_iter(path, 4, seed=9, **ROUGH) for _ in range(2))
    for _ in range(taken):
        if first.state()['batch'] == 6:
            first.reset()
        next(first)
    second.restore(first.state())
    for ours, theirs in zip(epoch(first), epoch(second)):
        assert np.array_equal(ours, theirs)
    assert first.state() == second.state()


@pytest.mark.parametrize('broken', [jpeg(5)[:2000], b'g' * 80, b''])
def test_a_corrupt_image_is_replaced_and_logged_once(tmp_path, open_iter, caplog, broken):
    path = numbered_set(tmp_path, 25, images={5: broken})
    images = open_iter(path, 4)
    for _ in range(5):
        found = labels(images)
        assert len(found) == 24 and set(found) == set(range(25)) - {5}
    assert caplog.text.count('corrupt image left out: record 5 of %s' % path) == 1


def test_without_a_remainder_an_image_comes_twice(tmp_path, open_iter):
    found = labels(open_iter(numbered_set(tmp_path, 24, images={5: b''}), 4))
    assert len(found) == 24 and set(found) == set(range(24)) - {5}


@pytest.mark.parametrize('payload', [b'', b'x' * 10, b'\xff' * 80, pack([4, 8, 9, 7], b'')])
def test_damaged_records_count_as_corrupt(tmp_path, open_iter, payload):
    payloads = {key: pack(key, jpeg(key), key) for key in range(9)}
    payloads[3] = payload
    assert set(labels(open_iter(write_set(tmp_path, payloads), 4, num_classes=9))) == set(range(9)) - {3}


def test_too_many_corrupt_images_are_an_error(tmp_path, open_iter):
    path = numbered_set(tmp_path, 25, images={5: b'', 8: b'junk'})
    images = open_iter(path, 5)
    with pytest.raises(UserError, match='2 corrupt images in one epoch, 1 tolerated: .*[58] of .*[58] of %s' % path):
        labels(images)
    with pytest.raises(UserError, match='corrupt images'):
        next(images)


def test_a_wrong_label_stops_at_once(tmp_path, open_iter, monkeypatch):
    path = plain_set(tmp_path, [0, 1, 2, 0, 1, 2, 4, 0, 1], first_key=15)
    with pytest.raises(UserError, match=r'label 4 outside \[0, 3\) \(record 21 of %s\)' % path):
        open_iter(path, 3, num_classes=3)
    monkeypatch.setattr('recognition.joined_sets.check_labels', lambda *args: None)
    images = open_iter(path, 3, num_classes=3)
    for _ in range(2):
        with pytest.raises(UserError, match=r'label 4 outside \[0, 3\) \(record 21 of %s\)' % path):
            labels(images)


def test_a_wrong_label_among_the_spares(tmp_path, open_iter, monkeypatch):
    monkeypatch.setattr('recognition.joined_sets.check_labels', lambda *args: None)
    path = plain_set(tmp_path, [0, 1, 0, 1, 9], images={2: b''})
    images = open_iter(path, 4, num_classes=2, shuffle=False)
    with pytest.raises(UserError, match='label 9 outside .*record 4 of'):
        next(images)


def test_a_reader_error_reaches_next(tmp_path, open_iter, monkeypatch):
    monkeypatch.setattr('common.face_record.CHECKED_IN_FULL', 1)
    monkeypatch.setattr('common.face_record.SAMPLES', 2)
    path = numbered_set(tmp_path, 30)
    edit_index(path, lambda pairs: [(key, offset + 4 * (key == 11)) for key, offset in pairs])
    write_property(str(tmp_path), Property(30, 112, 112))
    monkeypatch.setattr('recognition.joined_sets.check_labels', lambda *args: None)
    images = open_iter(path, 6)
    start = time.monotonic()
    with pytest.raises(UserError, match='no record at offset.*key 11 of .*train.idx'):
        labels(images)
    assert time.monotonic() - start < 10


def test_a_slow_reader_is_reported(tmp_path, open_iter, monkeypatch, caplog):
    monkeypatch.setattr('recognition.batch_decoder.PATIENCE_SECONDS', 0.05)
    monkeypatch.setattr('recognition.batch_decoder.decode_checked',
                        lambda *args: time.sleep(0.2) or np.zeros((112, 112, 3), np.uint8))
    images = open_iter(numbered_set(tmp_path, 2), 2)
    next(images)
    assert 'no batch for' in caplog.text and images.wait_seconds >= 0.2


def test_batch_larger_than_the_set(tmp_path, open_iter):
    path = identity_set(tmp_path, 5, 5)
    with pytest.raises(UserError, match='25 images < global batch 128 '):
        open_iter(path, 128)
    with pytest.raises(UserError, match='25 images < global batch 26 .13 per process x 2 processes'):
        open_iter(path, 13, world_size=2)


@pytest.mark.parametrize('wrong', [dict(data_shape=(112, 112)), dict(data_shape=(1, 112, 112)), dict(batch_size=0),
                                   dict(rank=2, world_size=2), dict(threads=0)])
def test_wrong_arguments(tmp_path, open_iter, wrong):
    arguments = dict(dict(batch_size=2, data_shape=SHAPE), **wrong)
    with pytest.raises(UsageError):
        open_iter(numbered_set(tmp_path, 4), **arguments)


def test_number_of_classes(tmp_path, open_iter, caplog):
    caplog.set_level(logging.INFO)
    path = plain_set(tmp_path, [0, 2, 1, 4])
    assert open_iter(path, 2).num_classes == 5 and 'largest label 4, so 5 classes' in caplog.text
    assert open_iter(path, 2, num_classes=7).num_classes == 7
    write_property(str(tmp_path), Property(6, 112, 112))
    assert open_iter(path, 2).num_classes == 6
    with pytest.raises(UserError, match='num_classes is 7, but %s/property says 6' % tmp_path):
        open_iter(path, 2, num_classes=7)


def test_more_classes_than_float32_holds(tmp_path, open_iter):
    with pytest.raises(UserError, match='16777217 classes need labels of two numbers'):
        open_iter(numbered_set(tmp_path, 4), 2, num_classes=2**24 + 1)


def test_small_classes_can_be_left_out(tmp_path, open_iter, caplog):
    caplog.set_level(logging.INFO)
    path = plain_set(tmp_path, [0, 1, 1, 2, 2, 2, 4, 4, 4])
    images = open_iter(path, 2, images_filter=3)
    assert images.num_classes == 5 and images.num_samples == 6 and set(labels(images)) == {2, 4}
    assert '6 of 9 images belong to the 2 of 4 classes that have at least 3 images' in caplog.text
    assert labels(open_iter(path, 2, images_filter=3, shuffle=False)) == [2, 2, 2, 4, 4, 4]
    with pytest.raises(UserError, match='0 images < global batch 2'):
        open_iter(path, 2, images_filter=4)


def test_sorted_records_without_shuffle_are_warned_of(tmp_path, open_iter, caplog):
    caplog.set_level(logging.INFO)
    path = identity_set(tmp_path, 8, 8)
    next(open_iter(path, 16, shuffle=False))
    assert '2 different labels among the 16 images' in caplog.text and 'shuffle is off' in caplog.text
    caplog.clear()
    next(open_iter(path, 16))
    assert 'shuffle is off' not in caplog.text


def test_configuration_is_passed_on(tmp_path, monkeypatch):
    path = identity_set(tmp_path, 4, 4)
    cfg = types.SimpleNamespace(batch_size=4, num_classes=4, data_rand_mirror=True, data_cutoff=16, data_color=2,
                                data_images_filter=2, seed=7, rank=1, world_size=2, data_threads=1, shuffle=True,
                                is_shuffled_rec=False)
    images = get_face_image_iter(cfg, SHAPE, path)
    expected = FaceImageIter(path, 4, SHAPE, num_classes=4, rand_mirror=True, cutoff=16, color=2, images_filter=2,
                             seed=7, rank=1, world_size=2, threads=1)
    try:
        for ours, theirs in zip(epoch(images), epoch(expected)):
            assert np.array_equal(ours, theirs)
    finally:
        images.close()
        expected.close()


def test_a_bare_configuration_and_a_shuffled_set(tmp_path):
    path = identity_set(tmp_path, 4, 4)
    images = get_face_image_iter(types.SimpleNamespace(batch_size=4), SHAPE, path)
    assert isinstance(images, mx.io.DataIter) and len(labels(images)) == 16
    images.close()
    with pytest.raises(UserError, match='is_shuffled_rec=True'):
        get_face_image_iter(types.SimpleNamespace(batch_size=4, is_shuffled_rec=True), SHAPE, path)
    (tmp_path / 'train.idx').unlink()
    with pytest.raises(UserError, match='missing file: .*train.idx.*is_shuffled_rec=True'):
        get_face_image_iter(types.SimpleNamespace(batch_size=4, is_shuffled_rec=False), SHAPE, path)


def test_batches_stay_as_they_were_given(tmp_path, open_iter):
    images = open_iter(numbered_set(tmp_path, 20), 2)
    batches = list(images)
    kept = [arrays(batch) for batch in batches]
    images.reset()
    epoch(images)
    for batch, (data, label) in zip(batches, kept):
        assert np.array_equal(batch.data[0].asnumpy(), data) and np.array_equal(batch.label[0].asnumpy(), label)


def test_an_unfinished_iterator_does_not_hold_up_the_exit(tmp_path):
    path = numbered_set(tmp_path, 40)
    code = ('import sys; from recognition.image_iter import FaceImageIter\n'
            'images = FaceImageIter(sys.argv[1], 8, (3, 112, 112)); next(images)')
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code, path], cwd=ROOT, timeout=60,
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, '')


def test_closing_ends_the_threads(tmp_path, open_iter):
    before = threading.active_count()
    images = open_iter(numbered_set(tmp_path, 40), 4, threads=3)
    next(images)
    assert threading.active_count() > before
    images.close()
    images.close()
    assert threading.active_count() == before
