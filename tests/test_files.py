import os

import pytest

from common.errors import UserError
from common.files import MANY, replacing


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
