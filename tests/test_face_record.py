"""Layouts, metadata, property file, labels, and the checks when a set is opened."""
import logging
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.face_labels import check_labels, infer_num_classes, read_labels
from common.face_record import (
    Property,
    class_id,
    class_in_range,
    open_face_set,
    pack_class_id,
    pack_metadata,
    read_property,
    write_property,
)
from common.recordio import MAGIC_BYTES, pack, unpack
from tests.make_sets import cut, edit_index, identity_set, jpeg, plain_set, write_set


def labels_of(face_set, **options):
    return read_labels(face_set, np.arange(face_set.num_images), **options).tolist()


def exact_labels(face_set):
    return [class_id(unpack(face_set.read(position))[0]) for position in range(face_set.num_images)]


def test_identity_layout(tmp_path):
    with open_face_set(identity_set(tmp_path, 5, 4)) as face_set:
        assert (face_set.layout, face_set.num_images, face_set.num_metadata) == ('identity', 20, 6)
        assert face_set.keys.tolist() == list(range(1, 21))
        assert labels_of(face_set) == exact_labels(face_set) == [i // 4 for i in range(20)]
        assert infer_num_classes(face_set) == 5


@pytest.mark.parametrize('first_key', [0, 1, 70])
def test_plain_layout(tmp_path, first_key):
    with open_face_set(plain_set(tmp_path, [3, 1, 2, 0] * 5, first_key)) as face_set:
        assert (face_set.layout, face_set.num_images, face_set.num_metadata) == ('plain', 20, 0)
        assert face_set.keys[0] == first_key and labels_of(face_set) == [3, 1, 2, 0] * 5


def test_two_number_label_with_an_image_is_an_image(tmp_path):
    with open_face_set(plain_set(tmp_path, [[i, 7] for i in range(9)])) as face_set:
        assert (face_set.layout, face_set.num_images) == ('plain', 9)
        assert labels_of(face_set) == exact_labels(face_set) == list(range(9))


def test_ranges_that_float32_rounded_do_no_harm(tmp_path):
    first, counts = 16777213, [3, 4, 3]
    payloads = {0: pack_metadata(first + 10, first + 13)}
    for key, label in enumerate(np.repeat(np.arange(3), counts).tolist(), first):
        payloads[key] = pack(label, jpeg(label), key)
    stops = first + np.cumsum(counts)
    for key, (start, stop) in enumerate(zip(stops - counts, stops), first + 10):
        payloads[key] = pack_metadata(start, stop)
    assert unpack(payloads[0])[0].label.tolist() == [16777224, 16777226]
    with open_face_set(write_set(tmp_path, payloads)) as face_set:
        assert face_set.keys.tolist() == list(range(first, first + 10)) and face_set.num_metadata == 4
        assert labels_of(face_set) == [0] * 3 + [1] * 4 + [2] * 3


def test_metadata_is_found_in_any_order_of_keys_and_offsets(tmp_path):
    payloads = {7: pack(1, jpeg(1)), 40: pack_metadata(7, 9), 2**40: pack_metadata(8, 9), 8: pack(0, jpeg(2)),
                0: pack_metadata(40, 41)}
    path = write_set(tmp_path, payloads)
    edit_index(path, lambda pairs: pairs[::-1])
    with open_face_set(path) as face_set:
        assert face_set.keys.tolist() == [7, 8] and labels_of(face_set) == [1, 0]


def test_metadata_without_header_is_left_out_with_a_warning(tmp_path, caplog):
    with open_face_set(write_set(tmp_path, {1: pack(0, jpeg(0)), 2: pack_metadata(1, 2)})) as face_set:
        assert face_set.num_images == 1
    assert 'has no header record' in caplog.text


def test_chunked_search(tmp_path, monkeypatch):
    monkeypatch.setattr('common.face_record._CHUNK', 3)
    monkeypatch.setattr('common.face_record.CHECKED_IN_FULL', 4)
    path = identity_set(tmp_path, 4, 3)
    with open_face_set(path) as face_set:
        assert face_set.keys.tolist() == list(range(1, 13))
    edit_index(path, lambda pairs: [(-key + 100, offset) for key, offset in pairs])
    with open_face_set(path) as face_set:
        assert face_set.keys.tolist() == list(range(88, 100))


@given(st.integers(0, 2**47))
def test_split_labels_hold_any_class(number):
    header, image = unpack(pack_class_id(number, b'face', 3, 'split24'))
    assert class_id(header, 'split24') == number and bytes(image) == b'face'


def test_one_number_labels_hold_what_float32_holds():
    assert class_id(unpack(pack_class_id(2**24 - 1, b''))[0]) == 2**24 - 1
    with pytest.raises(ValueError, match='16777217'):
        pack_class_id(2**24 + 1, b'')


@pytest.mark.parametrize('label', [-1, 1.5, float('nan'), float('inf'), [-2, 0], [0.5, 1]])
def test_labels_that_are_no_class(label):
    with pytest.raises(ValueError, match='is not a class id'):
        class_id(unpack(pack(label, b''))[0])


def test_split_labels_that_are_no_class():
    with pytest.raises(ValueError, match='one number'):
        class_id(unpack(pack(3, b''))[0], 'split24')
    with pytest.raises(ValueError, match='below 2'):
        class_id(unpack(pack([0, 2**24], b''))[0], 'split24')
    with pytest.raises(ValueError, match=r'label 4 outside \[0, 3\)'):
        class_in_range(unpack(pack(4, b''))[0], 3)


def test_split_labels_of_a_whole_set(tmp_path):
    numbers = [5, 2**24 + 1, 2**25 + 3]
    path = write_set(tmp_path, {key: pack_class_id(number, jpeg(key), key, 'split24')
                                for key, number in enumerate(numbers)})
    with open_face_set(path) as face_set:
        assert labels_of(face_set, label_format='split24') == numbers
        assert infer_num_classes(face_set, 'split24') == 2**25 + 4


@pytest.mark.parametrize('label', [4, -1, 1.5, float('nan'), [7, 0]])
def test_label_outside_is_named_with_its_record(tmp_path, label):
    path = plain_set(tmp_path, [0, 1, 2, 0, label, 1])
    with open_face_set(path) as face_set, pytest.raises(UserError, match=r'\(record 4 of %s\)' % path):
        check_labels(face_set, 3)


def test_classes_without_images_are_counted(tmp_path, caplog):
    with open_face_set(plain_set(tmp_path, [0, 2, 5])) as face_set:
        check_labels(face_set, 9)
    assert '6 of 9 classes have no image' in caplog.text


def test_large_sets_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr('common.face_labels.CHECKED_IN_FULL', 5)
    monkeypatch.setattr('common.face_labels.SAMPLES', 3)
    with open_face_set(plain_set(tmp_path, [0, 9, 0, 0, 0, 0, 7])) as face_set:
        check_labels(face_set, 8)
        with pytest.raises(UserError, match='record 6'):
            check_labels(face_set, 7)


def test_damaged_records_have_no_label(tmp_path):
    payloads = {0: pack(1, jpeg(0)), 1: b'', 2: b'x' * 9, 3: struct.pack('<IfQQ', 3, 0, 0, 0), 4: pack(0, b'')}
    with open_face_set(write_set(tmp_path, payloads)) as face_set:
        assert labels_of(face_set) == [1, -1, -1, -1, 0]
        assert infer_num_classes(face_set) == 2
        check_labels(face_set, 2)


def test_labels_of_records_in_parts(tmp_path):
    payloads = {0: pack(4, MAGIC_BYTES + jpeg(0)), 1: pack([5, 1, 2], b'1234' + MAGIC_BYTES), 2: MAGIC_BYTES + b'x'}
    with open_face_set(write_set(tmp_path, payloads)) as face_set:
        assert labels_of(face_set) == [4, 5, -1]


def test_one_label_in_two_identities_is_one_class(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    images = {key: pack(1, jpeg(key), key) for key in (5, 6)}
    with open_face_set(identity_set(tmp_path, 3, 2, images=images)) as face_set:
        assert face_set.num_metadata == 4 and infer_num_classes(face_set) == 2
    assert 'largest label 1, so 2 classes' in caplog.text


def test_missing_files_are_listed(tmp_path):
    with pytest.raises(UserError, match=f'missing files: {tmp_path}/a.rec, {tmp_path}/a.idx'):
        open_face_set(str(tmp_path / 'a.rec'))
    path = plain_set(tmp_path, [0])
    (tmp_path / 'train.idx').unlink()
    with pytest.raises(UserError, match='missing file: %s/train.idx.*is_shuffled_rec=True' % tmp_path):
        open_face_set(path)


def test_empty_sets(tmp_path):
    path = write_set(tmp_path, {0: pack_metadata(1, 1)})
    with pytest.raises(UserError, match='holds no images, only 1 metadata'):
        open_face_set(path)
    (tmp_path / 'train.idx').write_text('')
    with pytest.raises(UserError, match='train.idx is empty'):
        open_face_set(path)


@pytest.mark.parametrize('offset, message', [
    ('18446744073709551615', 'no file has an offset like 18446744073709551615'),
    (10**12, 'outside the file'), (6, 'not a multiple of 4'), (8, 'wrong magic number'),
])
def test_wrong_offset_names_key_offset_and_both_files(tmp_path, offset, message):
    path = identity_set(tmp_path, 3, 3)
    edit_index(path, lambda pairs: [(key, offset if key == 4 else place) for key, place in pairs])
    with pytest.raises(UserError, match=message) as caught:
        open_face_set(path)
    assert path[:-3] + 'idx' in str(caught.value) and str(offset) in str(caught.value)
    if offset != '18446744073709551615':
        assert path in str(caught.value) and 'key 4' in str(caught.value)


def test_two_keys_of_one_record(tmp_path):
    path = plain_set(tmp_path, [0, 1, 2])
    edit_index(path, lambda pairs: pairs + [(9, pairs[1][1])])
    with pytest.raises(UserError, match='also the offset of another key'):
        open_face_set(path)


@pytest.mark.parametrize('num_bytes', [1, 40, 500])
@pytest.mark.parametrize('shuffled', [False, True])
def test_truncated_file_is_met_when_opened(tmp_path, num_bytes, shuffled):
    path = plain_set(tmp_path, [0, 1, 2, 3])
    if shuffled:
        edit_index(path, lambda pairs: [(9 - key, offset) for key, offset in pairs])
    cut(path, num_bytes)
    with pytest.raises(UserError, match='train.rec truncated: record at offset .*key %d of' % (6 if shuffled else 3)):
        open_face_set(path)


def test_bad_record_later_names_key_and_files(tmp_path, monkeypatch):
    monkeypatch.setattr('common.face_record.CHECKED_IN_FULL', 1)
    monkeypatch.setattr('common.face_record.SAMPLES', 2)
    path = plain_set(tmp_path, [0, 1, 2, 3])
    edit_index(path, lambda pairs: [(key, offset + 4 * (key == 1)) for key, offset in pairs])
    with open_face_set(path) as face_set, pytest.raises(UserError, match='%s: no record .*key 1 of .*idx' % path):
        face_set.read(1)


@pytest.mark.parametrize('memory, asked', [(10**12, 0), (0, 3)])
def test_large_files_are_read_ahead(tmp_path, monkeypatch, memory, asked):
    monkeypatch.setattr('common.face_record.physical_memory', lambda: memory)
    ranges = []
    with open_face_set(plain_set(tmp_path, [0, 1, 2, 3])) as face_set:
        monkeypatch.setattr(face_set.record_file, 'will_need', lambda *args: ranges.append(args))
        face_set.will_need(np.array([3, 0, 2], np.int32))
        assert [start for start, _ in ranges] == face_set.offsets[[3, 0, 2]][:asked].tolist()


def test_reading_ahead_changes_nothing(tmp_path):
    with open_face_set(plain_set(tmp_path, [0, 1, 2, 3])) as face_set:
        before = [bytes(face_set.read(position)) for position in range(4)]
        for offset in face_set.offsets.tolist():
            face_set.record_file.will_need(offset, 10**6)
        assert [bytes(face_set.read(position)) for position in range(4)] == before


def test_property_round_trip(tmp_path):
    assert read_property(str(tmp_path)) is None
    write_property(str(tmp_path), Property(85742, 112, 96))
    assert (tmp_path / 'property').read_text() == '85742,112,96\n'
    write_property(str(tmp_path), Property(7, 112, 96, {'label_format': 'split24', 'shuffled': 'a=b'}))
    found = read_property(str(tmp_path))
    assert (found.num_classes, found.height, found.width) == (7, 112, 96)
    assert found.label_format == 'split24' and found.extra['shuffled'] == 'a=b'
    assert [path.name for path in tmp_path.iterdir()] == ['property']
    with pytest.raises(UserError, match='cannot write'):
        write_property(str(tmp_path / 'none'), found)


@pytest.mark.parametrize('text', ['', '5,112', '5,112,x', '0,112,112', '-5,112,112', '5;112;112', '5,112,112,3'])
def test_property_junk(tmp_path, text):
    (tmp_path / 'property').write_text(text)
    with pytest.raises(UserError, match='property: the first line must be "classes,height,width"'):
        read_property(str(tmp_path))


def test_property_that_is_no_text_or_unknown(tmp_path):
    (tmp_path / 'property').write_bytes(b'\xff\xfe\x00')
    with pytest.raises(UserError, match='cannot read'):
        read_property(str(tmp_path))
    (tmp_path / 'property').write_text('5,112,112\nlabel_format=float16\n')
    with pytest.raises(UserError, match='float16 is not known'):
        read_property(str(tmp_path))
