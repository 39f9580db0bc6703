import os

import pytest

from common.errors import UserError
from common.files import MANY, clear_leftovers, replacing


def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / 'file'
    with replacing(path) as temporary:
        temporary.write_text('new')
        assert not path.exists()
    assert path.read_text() == 'new' and os.listdir(str(tmp_path)) == ['file']


def test_what_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / 'file'
    path.write_text('old')
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text('half')
        raise RuntimeError
    assert path.read_text() == 'old' and os.listdir(str(tmp_path)) == ['file']


def test_a_folder_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / 'folder'
    for text in ('one', 'two'):
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / text).write_text(text)
    assert os.listdir(str(path)) == ['two'] and os.listdir(str(tmp_path)) == ['folder']


def test_a_folder_of_many_files(tmp_path):
    with replacing(tmp_path / 'folder') as temporary:
        temporary.mkdir()
        for number in range(MANY + 1):
            (temporary / str(number)).touch()
    assert len(os.listdir(str(tmp_path / 'folder'))) == MANY + 1


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UserError, match='cannot write .*missing/file: No such file'), \
            replacing(tmp_path / 'missing' / 'file') as temporary:
        temporary.write_text('x')


def test_a_folder_put_aside_by_a_killed_writer_gets_its_name_back(tmp_path):
    """Killed between the two renames: the old content is all there is."""
    for name, content in (('.model-0000.head.7.old.partial', 'old'), ('.model-0000.head.7.partial', 'new'),
                          ('.model-0001.head.7.old.partial', 'older'), ('model-0001.head', 'kept'),
                          ('.other-0000.head.7.partial', 'of another run')):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'file').write_text(content)
    clear_leftovers(tmp_path, 'model-')
    assert sorted(path.name for path in tmp_path.iterdir()) == ['.other-0000.head.7.partial', 'model-0000.head',
                                                                'model-0001.head']
    assert (tmp_path / 'model-0000.head' / 'file').read_text() == 'old'
    assert (tmp_path / 'model-0001.head' / 'file').read_text() == 'kept'
