"""The builder of training sets, and the command-line manners that all tools share."""
import os
import subprocess
import sys

import numpy as np
import pytest

from common import command, rec_builder
from common.errors import UsageError
from common.face_record import class_id, open_face_set, read_property
from common.images import image_size
from common.photo_files import natural_key
from common.recordio import unpack
from tests.conftest import ROOT
from tests.make_sets import encode, identity_set, jpeg, picture


def photos(folder, names, size=(112, 112)):
    """Write photo i under names[i], IDENTITY/PHOTO.jpg."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, size))
    return folder


def build(source, output, *flags):
    return rec_builder.main(['--input', str(source), '--output', str(output), '--threads', '2'] + list(flags))


def content(folder):
    """[(key, class, encoded)] of a set."""
    with open_face_set(str(folder / 'train.rec')) as found:
        records = [unpack(found.read(position)) for position in range(found.num_images)]
        return [(int(key), class_id(header), bytes(image)) for key, (header, image) in zip(found.keys, records)]


def test_set_from_folders(tmp_path):
    source = photos(tmp_path / 'in', ['p10/a.jpg', 'p2/b10.jpg', 'p2/b9.jpg'])
    (source / 'notes.txt').write_text('not a photo')
    (source / 'p2' / '.hidden.jpg').write_text('not a photo')
    assert build(source, tmp_path / 'out') == 0
    assert content(tmp_path / 'out') == [(1, 0, jpeg(2)), (2, 0, jpeg(1)), (3, 1, jpeg(0))]
    found = read_property(str(tmp_path / 'out'))
    assert (found.num_classes, found.height, found.width, found.extra) == (2, 112, 112, {})
    assert (tmp_path / 'out' / 'labels.tsv').read_text() == '0\tp2\n1\tp10\n'
    assert sorted(os.listdir(tmp_path / 'out')) == ['labels.tsv', 'property', 'train.idx', 'train.rec']


def test_same_bytes_as_the_known_layout(tmp_path):
    path = identity_set(tmp_path / 'known', 3, 2)
    photos(tmp_path / 'in', ['%d/%d.jpg' % (number // 2, number) for number in range(6)])
    images = sorted((tmp_path / 'in').rglob('*.jpg'))
    for number, image in enumerate(images):
        image.write_bytes(jpeg(number))
    assert build(tmp_path / 'in', tmp_path / 'out') == 0
    for name in ('train.rec', 'train.idx', 'property'):
        assert (tmp_path / 'out' / name).read_bytes() == (tmp_path / 'known' / name).read_bytes(), name
    assert path


def test_set_from_a_list(tmp_path):
    photos(tmp_path / 'in', ['a.jpg', 'b.jpg', 'c.jpg'])
    lines = tmp_path / 'list.tsv'
    lines.write_text('a.jpg\t10\n\nb.jpg\t9\r\nc.jpg\t10\n')
    assert build(lines, tmp_path / 'out', '--root', str(tmp_path / 'in')) == 0
    assert content(tmp_path / 'out') == [(1, 0, jpeg(1)), (2, 1, jpeg(0)), (3, 1, jpeg(2))]


def test_resizing_leaves_photos_of_that_size_alone(tmp_path):
    source = photos(tmp_path / 'in', ['p/a.jpg'])
    (source / 'p' / 'b.png').write_bytes(encode(picture(1, (60, 80)), '.png'))
    assert build(source, tmp_path / 'out', '--resize', '112x112', '--quality', '80') == 0
    (_, _, first), (_, _, second) = content(tmp_path / 'out')
    assert first == jpeg(0)
    assert second[:2] == b'\xff\xd8' and image_size(second) == (112, 112)


def test_unreadable_photos_are_left_out_and_listed(tmp_path, capsys):
    source = photos(tmp_path / 'in', ['p/a.jpg', 'p/b.jpg', 'q/c.jpg'])
    (source / 'p' / 'a.jpg').write_bytes(jpeg(0)[:-200])
    (source / 'q' / 'c.jpg').write_bytes(b'')
    assert build(source, tmp_path / 'out') == 0
    assert content(tmp_path / 'out') == [(1, 0, jpeg(1))]
    listed = (tmp_path / 'out' / 'unreadable.tsv').read_text().splitlines()
    assert [line.split('\t')[0] for line in listed] == [str(source / 'p' / 'a.jpg'), str(source / 'q' / 'c.jpg')]
    said = capsys.readouterr().out
    assert '1 identities have no readable photo' in said and 'left out' in said
    assert build(source, tmp_path / 'strict', '--strict') == 1
    assert sorted(os.listdir(tmp_path)) == ['in', 'out']


def test_nothing_readable(tmp_path, capsys):
    source = photos(tmp_path / 'in', ['p/a.jpg'])
    (source / 'p' / 'a.jpg').write_bytes(b'')
    assert build(source, tmp_path / 'out') == 1
    assert 'none of 1 photos can be read' in capsys.readouterr().err
    assert os.listdir(tmp_path) == ['in']


@pytest.mark.parametrize('flags, code, said', [
    (['--resize', '112'], 2, 'HEIGHTxWIDTH'),
    (['--resize', '0x4'], 2, 'HEIGHTxWIDTH'),
    (['--quality', '90'], 2, 'without --resize'),
    (['--quality', '101', '--resize', '8x8'], 2, 'from 1 to 100'),
    (['--threads', '0'], 2, 'from 1 to 256'),
    (['--root', '.'], 2, 'only a list file'),
])
def test_wrong_flags(tmp_path, capsys, flags, code, said):
    source = photos(tmp_path / 'in', ['p/a.jpg'])
    assert build(source, tmp_path / 'out', *flags) == code
    error = capsys.readouterr().err
    assert error.startswith('error: ') and said in error and error.count('\n') == 1


def test_wrong_places(tmp_path, capsys):
    source = photos(tmp_path / 'in', ['p/a.jpg'])
    (tmp_path / 'link').symlink_to(source)
    (tmp_path / 'empty').mkdir()
    for given, output, said in ((source, source, 'there already'), (source, source / 'out', 'inside the source'),
                                (tmp_path / 'link' / '', source / 'p' / 'out', 'inside the source'),
                                (source, tmp_path / 'no' / 'out', 'there is no folder'),
                                (tmp_path / 'empty', tmp_path / 'out', 'holds no photos'),
                                (tmp_path / 'gone', tmp_path / 'out', 'cannot read')):
        assert build(given, output) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_wrong_list(tmp_path, capsys):
    lines = tmp_path / 'list.tsv'
    for text, said in (('a\0\t1\n', 'line 1 is not'),
                       ('a.jpg 1\n', 'line 1 is not "PATH<tab>LABEL"'), ('a\t1\nb\t\n', 'line 2'), ('', 'no photos')):
        lines.write_text(text)
        assert build(lines, tmp_path / 'out') == 1
        assert said in capsys.readouterr().err


def test_natural_order():
    names = ['b', 'a10', 'a2', 'a02', 'a', '10', '9']
    assert sorted(names, key=natural_key) == ['9', '10', 'a', 'a02', 'a2', 'a10', 'b']


def test_names_that_are_no_text(tmp_path, capsys):
    source = photos(tmp_path / 'in', ['p\udcff/a.jpg', 'p\udcff/b.jpg'])
    (source / 'p\udcff' / 'b.jpg').write_bytes(b'')
    assert build(source, tmp_path / 'out') == 0
    assert (tmp_path / 'out' / 'labels.tsv').read_bytes() == b'0\tp\xff\n'
    assert 'p\\udcff/b.jpg: no bytes' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['rec_builder', 'bin_builder', 'rec_inspect', 'rec2image'])
def test_tools_run_by_their_path_and_show_an_example(tmp_path, name):
    command_line = [sys.executable, str(ROOT / 'common' / (name + '.py')), '--help']
    said = subprocess.run(command_line, cwd=str(tmp_path), stdout=subprocess.PIPE, check=True).stdout.decode()
    assert 'example:\n  %s --input' % name in said


def test_exit_codes(capsys):
    def fail(error):
        def run(args):
            raise error
        return command.run_tool(command.tool_parser('x', 'y', 'z'), run, [])
    assert fail(UsageError('two\nlines')) == 2
    assert fail(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == 'error: two lines\ninterrupted\n'


def test_threads_keep_the_order_and_look_ahead_a_little():
    taken = []
    items = (taken.append(number) or number for number in range(100))
    results = command.on_threads(lambda number: number * 2, items, 2, 'x', 100)
    assert next(results) == 0
    assert len(taken) <= 2 * command.AHEAD + 1
    assert [0] + list(results) == list(np.arange(100) * 2)
