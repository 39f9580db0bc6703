"""A face set as a source of images: records are found many at a time, with the same result as one by one."""
import hashlib
import struct
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import record_source, shuffle
from common.class_ids import read_class_ids
from common.errors import UserError
from common.face_record import FLOAT32, SPLIT24, Property, class_id, write_property
from common.rec2shufrec import main
from common.record_source import Source, find_records
from common.recordio import MAGIC, MAGIC_BYTES, RecordFile, pack, unpack
from tests.make_sets import cut, identity_set, plain_set, write_set

PAYLOADS = st.lists(st.sampled_from([b'x' * 70, b'yy', MAGIC_BYTES, b'zzzz']), max_size=6).map(b''.join)
NUMBERS = st.sampled_from([0, 1, 5, 1.5, -1, float('nan'), float('inf'), (1 << 24) - 1, 1 << 24, 2.0**40, 2.0**70])


def unsplit(payload):
    """A whole record although the magic number is in it: other writers may not look for it."""
    return struct.pack('<II', MAGIC, len(payload)) + payload + bytes(-len(payload) % 4)


@settings(max_examples=80, deadline=None)
@given(payloads=st.lists(PAYLOADS, min_size=1, max_size=12), batch=st.sampled_from([4, 60, 200, 1 << 20]),
       is_split=st.booleans(), cut_off=st.integers(0, 3))
def test_records_are_found_as_by_a_walk(tmp_path_factory, payloads, batch, is_split, cut_off):
    folder = tmp_path_factory.mktemp('set')
    path = write_set(folder, dict(enumerate(payloads)), has_index=False)
    if not is_split:
        (folder / 'train.rec').write_bytes(b''.join(map(unsplit, payloads)))
    cut(path, min(cut_off, -len(payloads[-1]) % 4))                     # the last padding may be missing
    with RecordFile(path) as record_file, patch.object(record_source, 'BATCH_BYTES', batch):
        found = list(find_records(record_file))
        offsets = np.concatenate([starts for starts, _, _ in found]).tolist()
        assert offsets == record_file.starts().tolist()
        assert [end for _, end, _ in found[:-1]] == [starts[0] for starts, _, _ in found[1:]]
        held = [any(payload[at:at + 4] == MAGIC_BYTES for at in range(0, len(payload), 4)) for payload in payloads]
        assert np.concatenate([is_odd for _, _, is_odd in found]).tolist() == held


@pytest.mark.parametrize('batch', [200, 1 << 20])
def test_a_damaged_record_in_the_middle(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(record_source, 'BATCH_BYTES', batch)
    path = plain_set(tmp_path / 'in', range(5), images={key: b'image' * 20 for key in range(5)})
    data = bytearray((tmp_path / 'in' / 'train.rec').read_bytes())
    offset = 2 * len(data) // 5
    data[offset] ^= 1
    (tmp_path / 'in' / 'train.rec').write_bytes(data)
    with RecordFile(path) as record_file, pytest.raises(UserError, match='no record at offset %d' % offset):
        list(find_records(record_file))


@settings(max_examples=80, deadline=None)
@given(labels=st.lists(st.one_of(NUMBERS, st.lists(NUMBERS, min_size=1, max_size=3)), min_size=1, max_size=8),
       label_format=st.sampled_from([FLOAT32, SPLIT24]))
def test_classes_of_many_records_are_those_of_each(tmp_path_factory, labels, label_format):
    payloads = {key: pack(label, b'image') for key, label in enumerate(labels)}
    expected = []
    for payload in payloads.values():
        try:
            number = class_id(unpack(payload)[0], label_format)
            expected.append(number if number < 1 << 62 else -1)
        except ValueError:
            expected.append(-1)
    with RecordFile(write_set(tmp_path_factory.mktemp('set'), payloads, has_index=False)) as record_file:
        assert read_class_ids(record_file, record_file.starts(), label_format).tolist() == expected


def test_prepared_images_may_hold_the_magic_number(tmp_path):
    plain_set(tmp_path / 'in', range(3))
    source = Source(str(tmp_path / 'in'))
    block, = [block for block, _ in source.batches(None, lambda images: [images[0], MAGIC_BYTES, b'other'])]
    assert block.entries['odd'].tolist() == [0, 1, 1]
    assert list(map(bytes, block.images()[1:])) == [MAGIC_BYTES, b'other']


@pytest.mark.parametrize('buckets', [1, 5])
def test_everything_is_read_once_and_front_to_back(tmp_path, monkeypatch, buckets):
    """Reads that begin elsewhere than the last one ended: one for the set and one for each bucket."""
    reads = []

    def note(kind, wrapped):
        def noted(*args):
            reads.append((kind,) + args[-2:])
            return wrapped(*args)
        return noted

    path = identity_set(tmp_path / 'in', 20, 10)
    monkeypatch.setattr(record_source, 'BATCH_BYTES', 100000)
    monkeypatch.setattr(shuffle, 'num_buckets', lambda total, memory: buckets)
    monkeypatch.setattr(RecordFile, 'find_magic', note('set', RecordFile.find_magic))
    monkeypatch.setattr(shuffle, '_take', note('bucket', shuffle._take))
    assert main(['--input', str(tmp_path / 'in'), '--output', str(tmp_path / 'out'), '--memory', '16']) == 0
    ranges = [read[1:] for read in reads if read[0] == 'set']
    largest = max(stop - start for start, stop in ranges)
    with RecordFile(path) as record_file:
        assert ranges[0][0] == 0 and ranges[-1][1] == record_file.size and largest <= 100000
    for (before, end), (start, _) in zip(ranges, ranges[1:]):
        assert before < start <= end and end - start < 20000            # a record that is cut is looked at again
    assert [read[0] for read in reads[len(ranges):]] == ['bucket'] * (buckets if buckets > 1 else 0)
    assert reads[:len(ranges)] == [('set',) + found for found in ranges]


def test_the_bytes_of_a_seed_are_fixed(tmp_path):
    """docs/data.md says so: if this fails, the change breaks that promise."""
    write_set(tmp_path / 'in', {key: pack(key, b'image %d' % key, key) for key in range(50)})
    write_property(str(tmp_path / 'in'), Property(50, 112, 112))
    assert main(['--input', str(tmp_path / 'in'), '--output', str(tmp_path / 'out'), '--seed', '3']) == 0
    digest = hashlib.sha256((tmp_path / 'out' / 'train.rec').read_bytes()).hexdigest()
    assert digest == '858f28b42a9acb1acf182337372fecf9a7de05a80c31c2d72bd28bc42472230d'
