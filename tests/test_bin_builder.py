"""The builder of verification sets."""
import os

import pytest

from common import bin_builder
from common.images import image_size
from common.verification import load_bin
from tests.make_sets import jpeg
from tests.test_rec_builder import photos


def build(source, output, *flags):
    return bin_builder.main(['--input', str(source), '--output', str(output), '--threads', '2'] + list(flags))


def test_pairs_of_a_list(tmp_path, capsys):
    photos(tmp_path, ['in/a.jpg', 'in/b.jpg', 'in/c.jpg'])
    (tmp_path / 'pairs.tsv').write_text('in/a.jpg\tin/b.jpg\t1\nin/a.jpg\tin/c.jpg\t0\n')
    assert build(tmp_path / 'pairs.tsv', tmp_path / 'val.bin') == 0
    found = load_bin(str(tmp_path / 'val.bin'))
    assert found.images == [jpeg(0), jpeg(1), jpeg(0), jpeg(2)] and found.same.tolist() == [True, False]
    assert '2 pairs, 1 of them same, of 3 photos' in capsys.readouterr().out


def test_pairs_drawn_from_folders(tmp_path):
    names = ['%d/%d.jpg' % (person, photo) for person in range(4) for photo in range(3)]
    source = photos(tmp_path / 'in', names, (20, 20))
    person_of = {jpeg(number, (20, 20)): name.split('/')[0] for number, name in enumerate(names)}
    for name, seed in (('a', '1'), ('b', '1'), ('c', '2')):
        assert build(source, tmp_path / (name + '.bin'), '--num-pairs', '10', '--seed', seed) == 0
    found = load_bin(str(tmp_path / 'a.bin'))
    people = [person_of[image] for image in found.images]
    assert [first == second for first, second in zip(people[::2], people[1::2])] == found.same.tolist()
    assert found.same.sum() == 5
    first, again, other = ((tmp_path / name).read_bytes() for name in ('a.bin', 'b.bin', 'c.bin'))
    assert first == again != other


def test_resize(tmp_path):
    source = photos(tmp_path / 'in', ['p/a.jpg', 'p/b.jpg', 'q/c.jpg'], (40, 30))
    assert build(source, tmp_path / 'val.bin', '--num-pairs', '2', '--resize', '24x16') == 0
    assert {image_size(image) for image in load_bin(str(tmp_path / 'val.bin')).images} == {(24, 16)}


@pytest.mark.parametrize('flags, code, said', [
    ([], 2, '--num-pairs is needed'),
    (['--num-pairs', '0'], 2, '--num-pairs 0'),
    (['--num-pairs', '2', '--seed', '-1'], 2, '--seed -1'),
    (['--num-pairs', '50'], 1, 'ask for fewer pairs'),
])
def test_wrong_flags_for_a_folder(tmp_path, capsys, flags, code, said):
    source = photos(tmp_path / 'in', ['p/a.jpg', 'p/b.jpg', 'q/c.jpg'], (20, 20))
    assert build(source, tmp_path / 'val.bin', *flags) == code
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == ['in']


def test_wrong_lists(tmp_path, capsys):
    photos(tmp_path, ['a.jpg', 'b.jpg'])
    (tmp_path / 'b.jpg').write_bytes(b'\xff\xd8 no photo')
    pairs = tmp_path / 'pairs.tsv'
    for text, flags, code, said in (('a.jpg\tb.jpg\t2\n', [], 1, 'line 1: the third column must be 0 or 1'),
                                    ('a.jpg\tb.jpg\n', [], 1, 'line 1 is not'),
                                    ('', [], 1, 'lists no pairs'),
                                    ('a.jpg\tb.jpg\t1\n', [], 1, 'b.jpg: '),
                                    ('a.jpg\tgone.jpg\t1\n', [], 1, 'gone.jpg: No such file'),
                                    ('a.jpg\ta.jpg\t1\n', ['--seed', '1'], 2, 'only a folder needs it')):
        pairs.write_text(text)
        assert build(pairs, tmp_path / 'val.bin', *flags) == code
        assert said in capsys.readouterr().err
    assert build(pairs, tmp_path / 'val.rec') == 2
    assert build(pairs, tmp_path / 'a.jpg') == 2
    (tmp_path / 'there.bin').write_bytes(b'precious')
    assert build(pairs, tmp_path / 'there.bin') == 1
    assert (tmp_path / 'there.bin').read_bytes() == b'precious'
    assert not (tmp_path / 'val.bin').exists()
