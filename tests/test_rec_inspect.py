"""Inspecting sets: sound ones, broken ones, lost indexes, contact sheets, the disk test."""
import hashlib

import cv2
import numpy as np
import pytest

from common import io_test, rec_inspect
from common.contact_sheet import MARGIN, TILE
from common.face_record import Property, open_face_set, pack_metadata, read_property, write_property
from common.index_builder import choose_keys, rebuild_index
from common.recordio import RecordFile, pack
from common.sequential_set import RECORDS, SHUFFLED
from tests.make_sets import cut, edit_index, identity_set, jpeg, plain_set, write_set


@pytest.fixture
def inspect(capsys):
    """inspect(path, *flags) -> (exit code, standard output, standard error)"""
    def run(path, *flags):
        code = rec_inspect.main(['--input', str(path), '--threads', '2'] + list(flags))
        return (code,) + tuple(capsys.readouterr())
    return run


def values(said):
    """{first word of a line: the rest}"""
    return {line[:15].strip(): line[15:] for line in said.splitlines()}


def test_sound_set(tmp_path, inspect):
    path = identity_set(tmp_path, 5, 5)
    code, said, _ = inspect(tmp_path, '--walk', '--md5', '--decode')
    found = values(said)
    assert code == 0
    assert found['images'] == '25' and found['metadata'] == '6 records without image' and found['identities'] == '5'
    assert found['labels'] == '0 to 4' and found['classes'] == '5 (as property says)'
    assert found['sizes'] == '112x112 25 (height x width, of 25 images)'
    assert found['walk'] == '31 whole records in train.rec'
    assert found['result'] == 'no problems found'
    assert '5 to 9 images          5 classes ' + '#' * rec_inspect.BAR in said
    with open(path, 'rb') as stream:
        digits = hashlib.md5(stream.read()).hexdigest()
    assert digits in said
    assert inspect(path, '--md5', digits.upper())[0] == 0
    code, said, _ = inspect(path, '--md5', '0' * 32)
    assert code == 1 and 'the MD5 should be' in said


def test_plain_set_without_property(tmp_path, inspect):
    plain_set(tmp_path, [0, 0, 5], size=(20, 30))
    code, said, _ = inspect(tmp_path)
    assert code == 0
    assert values(said)['layout'] == 'images only'
    assert values(said)['without images'] == '4 classes, the first: 1 2 3 4'
    assert '6 (no property file' in said and '20x30 3' in said


def test_one_label_of_several_identity_records_counts_once(tmp_path, inspect):
    images = {key: pack(0, jpeg(key, (8, 8)), key) for key in range(1, 5)}
    identity_set(tmp_path, 2, 2, (8, 8), images=images)
    found = values(inspect(tmp_path)[1])
    assert (found['identities'], found['metadata']) == ('1', '3 records without image')
    assert found['without images'].startswith('1 classes')


def test_wrong_labels_and_images(tmp_path, inspect):
    images = {1: pack(7, jpeg(1), 1), 2: pack(float('nan'), jpeg(1), 2), 3: pack(0, jpeg(1)[:-300], 3), 4: b'short'}
    identity_set(tmp_path, 2, 2, images=images)
    code, said, _ = inspect(tmp_path, '--decode', '--walk')
    assert code == 1
    for text in ('2 images have no class id as label, the first is record 2 of',
                 '1 images have a label outside [0, 2), the first is record 1 of',
                 'record 3 of %s/train.rec: a JPEG of' % tmp_path, 'a record of 5 bytes has no label'):
        assert text in said


def test_property_that_states_too_few_classes(tmp_path, inspect):
    plain_set(tmp_path, [0, 1, 7, 8], size=(8, 8))
    write_property(str(tmp_path), Property(3, 8, 8))
    code, said, _ = inspect(tmp_path)
    assert code == 1 and values(said)['without images'] == '1 classes, the first: 2'
    assert '2 images have a label outside [0, 3)' in said


def test_walk_goes_on_behind_damage(tmp_path, inspect):
    path = identity_set(tmp_path, 2, 2)
    with open_face_set(path) as found, open(path, 'rb+') as stream:
        stream.seek(int(found.offsets[1]))
        stream.write(b'none')
    code, said, _ = inspect(tmp_path, '--walk')
    assert code == 1 and values(said)['walk'].startswith('6 whole records')
    assert '1 lines lead to no whole record' in said and 'result         3 problems' in said


def test_truncated_set(tmp_path, inspect):
    path = identity_set(tmp_path, 2, 2)
    cut(path, 8)
    code, said, error = inspect(tmp_path)
    assert code == 1 and error.startswith('error: ') and 'truncated' in error and error.count('\n') == 1
    code, said, error = inspect(tmp_path, '--walk')
    assert code == 1 and not error and 'truncated' in said


def test_records_that_the_index_lacks(tmp_path, inspect):
    path = identity_set(tmp_path, 2, 2)
    edit_index(path, lambda pairs: pairs[:2] + pairs[3:])
    code, said, _ = inspect(tmp_path, '--walk')
    assert code == 1 and '1 records are not listed' in said


def test_index_is_rebuilt(tmp_path, inspect):
    path = identity_set(tmp_path, 3, 2)
    index = tmp_path / 'train.idx'
    known = index.read_bytes()
    code, _, error = inspect(tmp_path, '--rebuild-index')
    assert code == 1 and 'give --force' in error
    index.write_text('junk')
    assert inspect(tmp_path, '--rebuild-index', '--force')[0] == 0
    assert index.read_bytes() == known
    index.unlink()
    assert values(inspect(tmp_path)[1])['images'] == '6'       # without an index too
    assert rebuild_index(path) == 10
    assert index.read_bytes() == known
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ['property', 'train.idx', 'train.rec']


@pytest.mark.parametrize('ids, keys', [
    ([5, 9, 7], [5, 9, 7]),
    ([0, 0, 0], [0, 1, 2]),
    ([1, 2, 2**63], [0, 1, 2]),
    (['meta', 4, 8, 'meta', 'meta'], [0, 4, 8, 9, 10]),
    (['meta', 0, 1, 'meta'], [0, 1, 2, 3]),
])
def test_keys_of_a_rebuilt_index(tmp_path, ids, keys):
    path = write_set(tmp_path, {place: pack_metadata(1, 2) if key == 'meta' else pack(0, b'image', key)
                                for place, key in enumerate(ids)}, has_index=False)
    with RecordFile(path) as records:
        assert choose_keys(records, records.starts()).tolist() == keys


def test_shuffled_set(tmp_path, inspect):
    path = plain_set(tmp_path, [0, 1, 0, 1], size=(8, 8))
    (tmp_path / 'train.idx').unlink()
    write_property(str(tmp_path), Property(2, 8, 8, {SHUFFLED: '1', RECORDS: '4'}))
    assert SHUFFLED in read_property(str(tmp_path)).extra
    code, said, _ = inspect(tmp_path, '--walk', '--decode')
    assert code == 0 and values(said)['images'] == '4'
    code, _, error = inspect(path, '--rebuild-index')
    assert code == 1 and 'read without an index' in error


def test_contact_sheet(tmp_path, inspect):
    images = {1: pack(0, b'junk', 1)}
    identity_set(tmp_path / 'set', 3, 2, images=images)
    sheet = tmp_path / 'faces.png'
    assert inspect(tmp_path / 'set', '--contact-sheet', str(sheet))[0] == 1    # the junk is a problem, but drawn
    drawn = cv2.imread(str(sheet))
    assert drawn.shape[0] == 3 * TILE
    first = cv2.imdecode(np.frombuffer(jpeg(2), np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(drawn[TILE:2 * TILE, MARGIN:MARGIN + TILE], first)
    assert (drawn[0, MARGIN] == (0, 0, 255)).all()             # a red cross
    assert inspect(tmp_path / 'set', '--contact-sheet', str(sheet))[0] == 1
    assert 'ends with .png' in inspect(tmp_path / 'set', '--contact-sheet', str(tmp_path / 'a.jpg'))[2]


def test_wrong_flags_and_paths(tmp_path, inspect):
    assert inspect(tmp_path, '--force')[0] == 2
    assert inspect(tmp_path, '--threads', '0')[0] == 2
    code, _, error = inspect(tmp_path)
    assert code == 1 and 'missing file: %s/train.rec' % tmp_path in error
    write_set(tmp_path, {0: pack_metadata(1, 2)}, has_index=False)
    code, _, error = inspect(tmp_path)
    assert code == 1 and 'holds no images' in error


def test_disk_test(tmp_path, inspect):
    identity_set(tmp_path, 4, 3)
    code, said, _ = inspect(tmp_path, '--io-test')
    assert code == 0 and 'records/s at random' in said and 'converting' in said


@pytest.mark.parametrize('rates, begins', [
    ((9000, 20000, 8000, False), 'converting will not pay: random reads are faster than'),
    ((1000, 1200, 8000, False), 'converting will not pay: reading front to back is hardly faster'),
    ((200, 20000, 8000, False), 'converting will pay: up to 40.0 times'),
    ((200, 2000, 8000, True), 'converting pays for the first epoch only (10.0 times'),
])
def test_verdicts(rates, begins):
    found = io_test.Rates(*rates, is_cold=True)
    assert found.verdict().startswith(begins)
    assert len(list(found.lines())) == 4
