"""Shuffled sets: which files they are made of, what is refused, and the light index."""
import os
import time
import types

import pytest
from easydict import EasyDict

from common.errors import UserError
from common.recordio import pack
from common.sequential_set import open_sequential_set, part_path
from recognition.dataset import find_dataset
from recognition.sequential_iter import SequentialFaceIter
from tests.make_sets import cut, identity_set, plain_set, write_set
from tests.make_shuffled import in_parts, sequential_set, write_chunk_index

SHAPE = (3, 112, 112)


@pytest.fixture
def open_iter():
    """SequentialFaceIter(path, batch_size, ...), closed after the test."""
    opened = []

    def make(path, batch_size, **options):
        opened.append(SequentialFaceIter(path, batch_size, SHAPE, **options))
        return opened[-1]
    yield make
    for images in opened:
        images.close()


def labels(images):
    """Labels of an epoch; the next one is begun."""
    found = [label for batch in images for label in batch.label[0].asnumpy().tolist()]
    images.reset()
    return found


def test_parts_must_be_complete(tmp_path):
    path = in_parts(tmp_path, [5, 6, 7])
    with open_sequential_set(path) as found:
        assert found.name(4) == 'record 4 of %s' % part_path(path, 0, 3)
        assert found.name(12) == 'record 1 of %s' % part_path(path, 2, 3)
    os.rename(part_path(path, 1, 3), str(tmp_path / 'away'))
    with pytest.raises(UserError, match='3 parts are wanted, missing or wrong: .*train-00001-of-00003.rec'):
        open_sequential_set(path)
    sequential_set(tmp_path, range(4))
    with pytest.raises(UserError, match='are both there'):
        open_sequential_set(path)
    with pytest.raises(UserError, match='missing file: .*elsewhere.train.rec'):
        open_sequential_set(str(tmp_path / 'elsewhere' / 'train.rec'))


def test_a_wrong_count_is_noticed(tmp_path):
    path = sequential_set(tmp_path, range(9), extra={'records': '10'})
    with pytest.raises(UserError, match='holds 9 records, but property says 10'):
        open_sequential_set(path)


@pytest.mark.parametrize('num_bytes', [37, 40, 2000])
def test_a_truncated_file(tmp_path, num_bytes):
    path = sequential_set(tmp_path, range(25))
    cut(path, num_bytes)
    with pytest.raises(UserError, match='%s truncated: record at offset' % path):
        open_sequential_set(path)


def test_files_that_are_no_sets(tmp_path):
    path = sequential_set(tmp_path, range(4))
    with open(path, 'ab') as stream:
        stream.write(bytes(64))
    with pytest.raises(UserError, match='no record at offset'):
        open_sequential_set(path)
    for content, message in ((b'', 'is empty'), (b'text', 'is not a RecordIO file'), (bytes(99), 'not a RecordIO')):
        (tmp_path / 'train.rec').write_bytes(content)
        with pytest.raises(UserError, match=message):
            open_sequential_set(path)


def test_indexed_sets_are_refused(tmp_path):
    path = identity_set(tmp_path / 'faces', 5, 5)
    for _ in range(2):
        with pytest.raises(UserError, match='indexed set.*common/rec2shufrec.py, or set is_shuffled_rec=False'):
            open_sequential_set(path)
        if os.path.exists(path[:-3] + 'idx'):                  # the second time, without the index
            os.remove(path[:-3] + 'idx')
    with pytest.raises(UserError, match='no mark that it was shuffled.*rec2shufrec'):
        open_sequential_set(plain_set(tmp_path / 'plain', range(9)))


@pytest.fixture
def light_index(monkeypatch):
    """Light indexes are used for small files, too, and know a record every few."""
    monkeypatch.setattr('common.chunk_index.CHUNK_BYTES', 6000)
    monkeypatch.setattr('common.sequential_set.INDEX_FROM', 0)
    monkeypatch.setattr('recognition.shuffle_buffer.MIN_CHUNK', 6000)


def test_a_light_index_saves_looking_at_all_records(tmp_path, open_iter, light_index, monkeypatch):
    path = in_parts(tmp_path, [30, 1, 34])
    walked = open_iter(path, 4)
    for number in range(3):
        write_chunk_index(part_path(path, number, 3))
    monkeypatch.setattr('common.recordio.RecordFile.starts', lambda self: pytest.fail('looked at all records'))
    indexed = open_iter(path, 4)
    assert walked.num_samples == indexed.num_samples == 65
    for _ in range(3):
        found = labels(indexed)
        assert len(found) == len(set(found)) == 64 and len(set(found) ^ set(labels(walked))) <= 2
    assert labels(open_iter(path, 5, shuffle=False)) == list(range(65))


def test_a_light_index_of_another_file(tmp_path, light_index):
    path = sequential_set(tmp_path, range(40))
    write_chunk_index(path)
    with open_sequential_set(path) as found, open_sequential_set(path, whole=True) as whole:
        assert found.num_images < found.num_records == whole.num_images == 40
        assert not found.is_whole and whole.is_whole
    cut(path, 40)
    with pytest.raises(UserError, match='%s has .* bytes, but train.chunks says .*cut or belongs to another' % path):
        open_sequential_set(path)
    (tmp_path / 'train.chunks').write_text('5\t7\n')
    with pytest.raises(UserError, match='train.chunks is damaged'):
        open_sequential_set(path)


def test_small_classes_can_be_left_out_with_a_light_index(tmp_path, open_iter, light_index):
    path = sequential_set(tmp_path, [0, 1, 1] + [2, 4] * 20)
    write_chunk_index(path)
    assert open_iter(path, 4, images_filter=3).num_samples == 40


def test_headers_are_found_quickly(tmp_path):
    payloads = dict.fromkeys(range(40000), pack(1, b'x' * 20))
    path = write_set(tmp_path, payloads, has_index=False)
    start = time.monotonic()
    with open_sequential_set(path) as found:
        assert found.num_images == 40000
    assert time.monotonic() - start < 0.8


@pytest.mark.parametrize('parts', [False, True])
def test_the_command_line_finds_shuffled_sets(tmp_path, parts):
    path = in_parts(tmp_path, [4, 4]) if parts else sequential_set(tmp_path, range(8))
    cfg = types.SimpleNamespace(dataset='other', dataset_path=os.path.dirname(path), is_shuffled_rec=True)
    cfg = EasyDict(vars(cfg), num_classes=None, image_shape=None)
    find_dataset(cfg)
    assert cfg.num_classes == 8
    with pytest.raises(UserError, match='missing file: .*train.rec .nor are there parts'):
        find_dataset(EasyDict(cfg, dataset_path=str(tmp_path / 'elsewhere')))
