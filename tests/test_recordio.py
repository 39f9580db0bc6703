"""Container and index: round trips, and every way a file can be broken."""
import os
import struct
import threading
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import recordio
from common.errors import UserError
from common.record_index import read_index
from common.recordio import MAGIC, MAGIC_BYTES, RecordFile, RecordWriter, frame_many, pack, unpack

PAYLOADS = st.lists(st.one_of(st.binary(max_size=40), st.just(MAGIC_BYTES), st.just(MAGIC_BYTES + b'ab')),
                    max_size=6).map(b''.join)


def write(path, payloads):
    with RecordWriter(str(path), str(path.with_suffix('.idx'))) as writer:
        return [writer.write(key, payload) for key, payload in enumerate(payloads)]


@settings(max_examples=60, deadline=None)
@given(payloads=st.lists(PAYLOADS, min_size=1, max_size=8))
def test_what_is_written_is_read(tmp_path_factory, payloads):
    path = tmp_path_factory.mktemp('rec') / 'a.rec'
    offsets = write(path, payloads)
    keys, indexed = read_index(str(path.with_suffix('.idx')))
    assert keys.tolist() == list(range(len(payloads))) and indexed.tolist() == offsets
    with RecordFile(str(path)) as record_file:
        assert [bytes(record_file.read(offset)) for offset in offsets] == payloads
        assert [(offset, bytes(payload)) for offset, payload in record_file.walk()] == list(zip(offsets, payloads))
        assert record_file.end_of(offsets[-1]) == record_file.size


@settings(max_examples=60, deadline=None)
@given(images=st.lists(PAYLOADS, min_size=1, max_size=8), ids=st.lists(st.sampled_from([0, 7, MAGIC]), min_size=8),
       split=st.integers(0, 8), at_once=st.sampled_from([1, 2, 1024]))
def test_many_at_once_give_the_bytes_of_one_after_the_other(tmp_path_factory, images, ids, split, at_once):
    folder = tmp_path_factory.mktemp('rec')
    labels = np.zeros(len(images), [('flag', '<u4'), ('label', '<f4'), ('id', '<u8'), ('id2', '<u8')])
    labels['id'], labels['label'] = ids[:len(images)], np.arange(len(images))
    offsets = write(folder / 'a.rec', [pack(row, image, ids[row]) for row, image in enumerate(images)])
    found = []
    with patch.object(recordio, 'PIECES_AT_ONCE', at_once), RecordWriter(str(folder / 'b.rec')) as writer:
        for rows in slice(0, split), slice(split, None):
            may_hold_magic = np.array([MAGIC_BYTES in image for image in images[rows]], bool)
            if images[rows]:
                found += writer.write_framed(*frame_many(labels[rows], images[rows], may_hold_magic)).tolist()
    assert found == offsets and (folder / 'a.rec').read_bytes() == (folder / 'b.rec').read_bytes()


@pytest.mark.parametrize('writev', [recordio._join_and_write, lambda handle, pieces: os.write(handle, pieces[0][:3])])
def test_systems_that_write_less_than_they_are_given(tmp_path, monkeypatch, writev):
    monkeypatch.setattr(recordio, '_writev', writev)
    monkeypatch.setattr(recordio, 'PIECES_AT_ONCE', 2)
    pieces = [b'abcd', b'', b'efghijkl', b'mn', b'o']
    with open(str(tmp_path / 'file'), 'wb', buffering=0) as stream:
        recordio.write_pieces(stream.fileno(), pieces)
    assert (tmp_path / 'file').read_bytes() == b''.join(pieces)


def test_files_equal_those_of_mxnet(tmp_path):
    from common.mxnet_loader import mx
    payloads = [mx.recordio.pack(mx.recordio.IRHeader(0, 3.0, 7, 0), b'image'),
                mx.recordio.pack(mx.recordio.IRHeader(0, [3, 9], 8, 0), b''),
                b'1234' + MAGIC_BYTES + MAGIC_BYTES + b'56789']
    theirs = mx.recordio.MXIndexedRecordIO(str(tmp_path / 't.idx'), str(tmp_path / 't.rec'), 'w')
    for key, payload in enumerate(payloads):
        theirs.write_idx(key, payload)
    theirs.close()
    write(tmp_path / 'o.rec', [pack(3.0, b'image', 7), pack([3, 9], b'', 8), payloads[2]])
    for end in ('rec', 'idx'):
        assert (tmp_path / ('o.' + end)).read_bytes() == (tmp_path / ('t.' + end)).read_bytes()


def test_labels_are_unpacked():
    header, image = unpack(memoryview(pack(5, b'face', key=12)))
    assert (header.flag, header.label, header.id, bytes(image)) == (0, 5.0, 12, b'face')
    header, image = unpack(pack([5, 0.25], b'face'))
    assert header.flag == 2 and header.label.tolist() == [5, 0.25] and bytes(image) == b'face'
    assert unpack(pack(1 << 24, b''))[0].label == 1 << 24


@pytest.mark.parametrize('label', [16777217, [16777217, 0], np.int64(-16777217)])
def test_labels_that_float32_rounds_are_refused(label):
    with pytest.raises(ValueError, match='16777217 is not exactly representable'):
        pack(label, b'')


@pytest.mark.parametrize('payload', [b'', b'x' * 23, struct.pack('<IfQQ', 1 << 31, 0, 0, 0) + b'x' * 40])
def test_crafted_headers_are_refused(payload):
    with pytest.raises(ValueError, match='record of %d bytes' % len(payload)):
        unpack(payload)


def test_threads_read_the_same(tmp_path):
    offsets = write(tmp_path / 'a.rec', [bytes([i % 251]) * (i % 97) for i in range(400)])
    with RecordFile(str(tmp_path / 'a.rec')) as record_file:
        expected = [bytes(record_file.read(offset)) for offset in offsets]
        seen = {}
        threads = [threading.Thread(target=lambda name=name: seen.update(
            {name: [bytes(record_file.read(offset)) for offset in offsets]})) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(seen[name] == expected for name in range(4))


def test_payloads_outlive_the_file(tmp_path):
    write(tmp_path / 'a.rec', [b'held'])
    record_file = RecordFile(str(tmp_path / 'a.rec'))
    payload = record_file.read(0)
    record_file.close()
    record_file.close()
    assert bytes(payload) == b'held'


def test_missing_empty_and_foreign_files(tmp_path):
    with pytest.raises(UserError, match='%s/none.rec' % tmp_path):
        RecordFile(str(tmp_path / 'none.rec'))
    (tmp_path / 'zero.rec').write_bytes(b'')
    with pytest.raises(UserError, match='zero.rec is empty'):
        RecordFile(str(tmp_path / 'zero.rec'))
    (tmp_path / 'text.rec').write_bytes(b'not a record file')
    with pytest.raises(UserError, match='text.rec is not a RecordIO file'):
        RecordFile(str(tmp_path / 'text.rec'))
    (tmp_path / 'short.rec').write_bytes(MAGIC_BYTES[:3])
    with pytest.raises(UserError, match='short.rec is not a RecordIO file'):
        RecordFile(str(tmp_path / 'short.rec'))


@pytest.mark.parametrize('cut', [1, 4, 37, 48, 60])
def test_a_cut_file_names_the_record(tmp_path, cut):
    offsets = write(tmp_path / 'a.rec', [b'a' * 64, b'b' * 60])
    data = (tmp_path / 'a.rec').read_bytes()
    (tmp_path / 'a.rec').write_bytes(data[:-cut])
    with RecordFile(str(tmp_path / 'a.rec')) as record_file:
        assert bytes(record_file.read(0)) == b'a' * 64
        with pytest.raises(UserError, match='a.rec truncated: record at offset %d needs' % offsets[1]):
            record_file.read(offsets[1])
        with pytest.raises(UserError, match='truncated'):
            list(record_file.walk())


def test_wrong_offsets_and_lost_parts(tmp_path):
    first, second = write(tmp_path / 'a.rec', [b'1234' + MAGIC_BYTES + b'tail', b'whole'])
    with RecordFile(str(tmp_path / 'a.rec')) as record_file:
        with pytest.raises(UserError, match='no record at offset 4'):
            record_file.read(4)
        with pytest.raises(UserError, match='offset 12 is inside a record'):
            record_file.read(12)
        for offset in (-4, second + 4096):
            with pytest.raises(UserError, match='truncated'):
                record_file.read(offset)
    data = (tmp_path / 'a.rec').read_bytes()
    (tmp_path / 'a.rec').write_bytes(data[:12] + data[second:])
    with RecordFile(str(tmp_path / 'a.rec')) as record_file, pytest.raises(UserError, match='lacks its last part'):
        record_file.read(first)


def test_a_failed_writer_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), RecordWriter(str(tmp_path / 'a.rec'), str(tmp_path / 'a.idx')) as writer:
        writer.write(0, b'x')
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match='cannot write .*none'):
        RecordWriter(str(tmp_path / 'a.rec'), str(tmp_path / 'none' / 'a.idx'))
    assert list(tmp_path.iterdir()) == []
    with RecordWriter(str(tmp_path / 'a.rec')) as writer, pytest.raises(ValueError, match='RecordIO allows'):
        writer.write(0, bytes(1 << 29))


def test_a_full_disk_is_reported():
    writer = RecordWriter.__new__(RecordWriter)
    with open('/dev/full', 'wb', buffering=0) as full:
        writer._streams, writer._paths, writer._partial, writer._offset = [full], ['x.rec'], ['/none'], 0
        with pytest.raises(UserError, match='cannot write x.rec: No space left'):
            writer.write(0, b'x')


@settings(max_examples=50, deadline=None)
@given(pairs=st.dictionaries(st.integers(0, 10**17), st.integers(0, 10**18 - 1), max_size=30), data=st.data())
def test_index_lines_in_any_order(tmp_path_factory, pairs, data):
    path = tmp_path_factory.mktemp('idx') / 'a.idx'
    lines = data.draw(st.permutations(['%d\t%d\n' % pair for pair in pairs.items()]))
    path.write_text(''.join(lines))
    keys, offsets = read_index(str(path))
    assert keys.dtype == offsets.dtype == np.int64
    assert dict(zip(keys.tolist(), offsets.tolist())) == pairs and (np.diff(keys) > 0).all()


def test_index_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr('common.record_index.CHUNK_BYTES', 7)
    (tmp_path / 'a.idx').write_text(''.join('%d\t%d\n' % (key, key * 100) for key in range(300)))
    keys, offsets = read_index(str(tmp_path / 'a.idx'))
    assert keys.tolist() == list(range(300)) and (offsets == keys * 100).all()


@pytest.mark.parametrize('text', ['1\t0\n3\t8\n', '3\t8\n1\t0', '1 0\r\n3 8\r\n', '\n1\t0\n\n3\t8\n\n'])
def test_index_forms_that_are_taken(tmp_path, text):
    (tmp_path / 'a.idx').write_text(text)
    assert [part.tolist() for part in read_index(str(tmp_path / 'a.idx'))] == [[1, 3], [0, 8]]


@pytest.mark.parametrize('text, message', [
    ('1\t0\n2\tx\n', 'a.idx line 2 is not "key, tab, offset"'),
    ('1\t0\n2\n', 'line 2'), ('1\t0\t5\n', 'line 1'), ('1\t-4\n', 'line 1'), ('1.5\t4\n', 'line 1'),
    ('\x00\xff\n', 'line 1'), ('1\n0\t2\n', 'line 1'),
    ('5\t0\n7\t18446744073709551615\n', 'line 2: no file has an offset like 18446744073709551615'),
    ('1\t0\n2\t8\n1\t16\n', 'key 1 occurs twice'),
])
def test_index_junk_is_named(tmp_path, text, message):
    (tmp_path / 'a.idx').write_text(text)
    with pytest.raises(UserError, match=message):
        read_index(str(tmp_path / 'a.idx'))


def test_missing_and_empty_index(tmp_path):
    with pytest.raises(UserError, match='cannot read %s/a.idx' % tmp_path):
        read_index(str(tmp_path / 'a.idx'))
    (tmp_path / 'a.idx').write_text('')
    assert [len(part) for part in read_index(str(tmp_path / 'a.idx'))] == [0, 0]
