"""Exporting sets to files, and the way there and back."""
import os

import pytest

from common import rec2image, rec2shufrec, rec_builder, rec_inspect
from common.face_record import SPLIT24, Property, pack_class_id, write_property
from common.recordio import pack
from tests.make_sets import encode, identity_set, jpeg, picture, plain_set, write_set
from tests.test_rec_builder import photos


def export(source, output, *flags):
    return rec2image.main(['--input', str(source), '--output', str(output)] + list(flags))


def files(folder):
    """{relative path: bytes}"""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_there_and_back(tmp_path):
    """Photos built into a set, inspected and exported are the same photos."""
    photos(tmp_path / 'in', ['%d/%d.jpg' % (number // 2, number + 1) for number in range(24)], (40, 40))
    source = files(tmp_path / 'in')
    build = ['--output', str(tmp_path / 'set'), '--threads', '2']
    assert rec_builder.main(['--input', str(tmp_path / 'in')] + build) == 0
    assert rec_inspect.main(['--input', str(tmp_path / 'set'), '--walk', '--decode', '--threads', '2']) == 0
    assert export(tmp_path / 'set', tmp_path / 'out') == 0
    assert files(tmp_path / 'out') == source
    again = ['--input', str(tmp_path / 'out'), '--output', str(tmp_path / 'again'), '--threads', '1']
    assert rec_builder.main(again) == 0
    assert files(tmp_path / 'again') == files(tmp_path / 'set')


def test_built_converted_inspected_and_exported(tmp_path, capsys):
    """The same photos under the same labels, by way of a shuffled set in parts."""
    photos(tmp_path / 'in', ['%d/%d.jpg' % (number // 3, number) for number in range(21)], (40, 40))
    common = ['--threads', '2']
    assert rec_builder.main(['--input', str(tmp_path / 'in'), '--output', str(tmp_path / 'set')] + common) == 0
    convert = ['--input', str(tmp_path / 'set'), '--output', str(tmp_path / 'mixed'), '--parts', '2']
    assert rec2shufrec.main(convert) == 0
    capsys.readouterr()
    assert rec_inspect.main(['--input', str(tmp_path / 'mixed'), '--walk', '--decode', '--md5'] + common) == 0
    said = capsys.readouterr().out
    assert said.count('whole records in train-0000') == 2 and 'images         21\n' in said
    assert export(tmp_path / 'mixed', tmp_path / 'out') == 0
    exported = [sorted((name.split('/')[0], data) for name, data in files(tmp_path / folder).items())
                for folder in ('in', 'out')]
    assert exported[0] == exported[1]


def test_a_killed_run_leaves_nothing_for_long(tmp_path):
    identity_set(tmp_path / 'set', 2, 1, (8, 8))
    (tmp_path / '.out.1.partial').mkdir()
    assert export(tmp_path / 'set', tmp_path / 'out') == 0
    assert sorted(os.listdir(tmp_path)) == ['out', 'set']


def test_chosen_labels(tmp_path):
    identity_set(tmp_path / 'set', 6, 1, (8, 8))
    assert export(tmp_path / 'set', tmp_path / 'out', '--labels', '1-2, 5') == 0
    assert files(tmp_path / 'out') == {'%d/%d.jpg' % (label, label + 1): jpeg(label, (8, 8)) for label in (1, 2, 5)}


def test_other_formats_keep_their_bytes(tmp_path, capsys):
    png = encode(picture(1, (8, 8)), '.png')
    plain_set(tmp_path / 'set', [3, 3, [4, 9]], images={0: png, 1: b'junk', 2: jpeg(2)})
    assert export(tmp_path / 'set' / 'train.rec', tmp_path / 'out') == 0
    assert files(tmp_path / 'out') == {'3/0.png': png, '3/1.bin': b'junk', '4/2.jpg': jpeg(2)}
    assert '1 of them are no JPEG' in capsys.readouterr().out


def test_large_class_ids(tmp_path):
    number = 2**24 + 1
    write_set(tmp_path / 'set', {0: pack_class_id(number, jpeg(0), 0, SPLIT24)})
    write_property(str(tmp_path / 'set'), Property(number + 1, 112, 112, {'label_format': SPLIT24}))
    assert export(tmp_path / 'set', tmp_path / 'out') == 0
    assert list(files(tmp_path / 'out')) == ['%d/0.jpg' % number]


@pytest.mark.parametrize('flags, code, said', [
    (['--labels', 'a'], 2, 'numbers and ranges'),
    (['--labels', '3-1'], 2, 'the range 3-1 is empty'),
    (['--labels', '8'], 1, 'no image of the classes'),
])
def test_wrong_labels_flag(tmp_path, capsys, flags, code, said):
    identity_set(tmp_path / 'set', 2, 1, (8, 8))
    assert export(tmp_path / 'set', tmp_path / 'out', *flags) == code
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == ['set']


def test_wrong_places_and_records(tmp_path, capsys):
    identity_set(tmp_path / 'set', 2, 1, (8, 8), images={2: pack(-1, jpeg(0), 2)})
    for output, said in ((tmp_path / 'set' / 'out', 'inside the source'), (tmp_path / 'set', 'there already'),
                         (tmp_path / 'out', 'record 2 of')):
        assert export(tmp_path / 'set', output) == 1
        assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == ['set']
