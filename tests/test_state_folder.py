"""Training states on disk: complete or not there, checked, kept, and never lost."""
import json
import os
import resource
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.temporary_folder import locked
from recognition import state_files, state_folder
from recognition.state_files import SEAL, DamagedState, StateWriter, check_files, read_manifest
from recognition.state_folder import StateFolder, checked_state
from tests.tiny_runs import state_path

ROWS = np.arange(600, dtype=np.float32).reshape(30, 20)


def fill(step):
    """Function that writes a small state."""
    def write(folder):
        writer = StateWriter(folder)
        writer.arrays('backbone.npz', [('weight/a', ROWS), ('momentum/a', ROWS + step)])
        with writer.create('head/centers-000000000-000000030.npy') as stream:
            stream.write(ROWS.data)
        writer.finish({'num_update': step}, writer.files)
    return write


@pytest.fixture
def folder(tmp_path):
    """A StateFolder that keeps 3 and holds steps 10 and 20."""
    states = StateFolder(tmp_path / 'model-state', keep=3)
    states.begin()
    for step in (10, 20):
        states.write(step, fill(step), 1000)
    return states


def content(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob('*')) if file.is_file()}


FILES = 'backbone.npz', 'head/centers-000000000-000000030.npy', 'manifest.json', SEAL


def flip(path, place=0.5, bit=3):
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(bytes(data))


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b' ')


def test_what_was_written_is_found_and_plain_tools_read_it(folder):
    path, manifest = folder.find('auto')
    assert path.name == 'step-00000020' and manifest['num_update'] == 20 and set(content(path)) == set(FILES)
    with np.load(str(path / 'backbone.npz'), allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays['momentum/a'], ROWS + 20)
    assert subprocess.run(['sha256sum', '-c', SEAL], cwd=str(path), check=False, stdout=-3).returncode == 0


@pytest.mark.parametrize('name', FILES)
@pytest.mark.parametrize('damage', [os.remove, cut, flip], ids=['missing', 'truncated', 'flipped'])
def test_auto_falls_back_when_the_newest_is_damaged(folder, caplog, name, damage):
    damage(folder.path / 'step-00000020' / name)
    before = content(folder.path)
    path, manifest = folder.find('auto')
    assert path.name == 'step-00000010' and manifest['num_update'] == 10
    assert 'step-00000020 cannot be used: ' in caplog.text and os.path.basename(name) in caplog.text
    assert 'resuming from the training state before' in caplog.text and content(folder.path) == before
    with pytest.raises(DamagedState, match=os.path.basename(name)):
        folder.find(str(folder.path / 'step-00000020'))


@given(st.sampled_from(FILES), st.floats(0, 0.9999), st.integers(0, 7))
def test_every_flipped_bit_is_found(tmp_path_factory, name, place, bit):
    path = tmp_path_factory.mktemp('state')
    fill(1)(path)
    checked_state(path)
    flip(path / name, place, bit)
    with pytest.raises(DamagedState):
        checked_state(path)


def test_bytes_behind_the_end_are_found(folder):
    lengthen(folder.path / 'step-00000020' / 'backbone.npz')
    with pytest.raises(DamagedState, match='backbone.npz is damaged: it has .* bytes, it was written with'):
        checked_state(folder.path / 'step-00000020')


def test_none_intact_is_no_fresh_start(folder):
    for step in (10, 20):
        os.remove(str(folder.path / ('step-%08d' % step) / 'manifest.json'))
    with pytest.raises(UserError, match=r'no training state in .*model-state is intact \(2 there\)'):
        folder.find('auto')


def test_a_newer_format_is_refused_not_passed_over(folder, monkeypatch):
    monkeypatch.setattr(state_files, 'FORMAT_VERSION', 7)
    folder.write(30, fill(30), 1000)
    monkeypatch.undo()
    for resume in ('auto', str(folder.path / 'step-00000030'), str(folder.path)):
        with pytest.raises(UserError, match='step-00000030 has format version 7, this program reads versions up to 1'):
            folder.find(resume)


def test_a_path_names_a_state_or_a_folder_of_states(folder, tmp_path):
    assert folder.find(str(folder.path / 'step-00000010'))[1]['num_update'] == 10
    other = StateFolder(tmp_path / 'other-state')
    assert other.find(str(folder.path))[1]['num_update'] == 20
    shutil.copytree(str(folder.path / 'step-00000010'), str(tmp_path / 'copy'))
    assert other.find(str(tmp_path / 'copy'))[1]['num_update'] == 10
    assert other.find('auto') is None and other.find('') is None
    with pytest.raises(UserError, match='there is no such folder'):
        other.find(str(tmp_path / 'nothing'))
    with pytest.raises(UserError, match='no training state in it'):
        other.find(str(tmp_path))


def test_the_newest_are_kept(folder):
    for step in (30, 40, 50):
        folder.write(step, fill(step), 1000)
    assert sorted(os.listdir(str(folder.path))) == ['step-00000030', 'step-00000040', 'step-00000050']


def test_a_fresh_run_moves_the_states_of_an_earlier_one_aside(folder, caplog):
    before = content(folder.path)
    for number in (1, 2):
        fresh = StateFolder(folder.path, keep=1)
        fresh.begin()
        assert 'holds a training state of an earlier run' in caplog.text
        assert list(fresh.states())                            # untouched until there is something new
        fresh.write(5, fill(5), 1000)
        assert list(fresh.states()) == [5] and (folder.path / ('aside-%d' % number)).is_dir()
    assert content(folder.path / 'aside-1') == before


def test_going_on_from_an_older_state_moves_the_newer_ones_aside(folder):
    again = StateFolder(folder.path, keep=3)
    again.begin(again.find(str(folder.path / 'step-00000010')))
    again.write(15, fill(15), 1000)
    assert list(again.states()) == [15, 10]
    assert os.listdir(str(folder.path / 'aside-1')) == ['step-00000020']


def test_what_a_killed_run_left_is_removed(folder):
    (folder.path / '.step-00000030.1.partial' / 'head').mkdir(parents=True)
    assert folder.find('auto')[1]['num_update'] == 20
    folder.write(30, fill(30), 1000)
    assert not list(folder.path.glob('.*'))


def test_two_runs_that_save_at_once_are_told(folder):
    with locked(str(folder.path / '.step-00000030.1.partial')), pytest.raises(UserError, match='another process'):
        folder.write(40, fill(40), 1000)


def failing_write(folder, expected):
    """The older states are as they were, nothing else is there, and the error is one line."""
    before = content(folder.path)
    with pytest.raises(UserError, match=expected) as caught:
        folder.write(30, fill(30), 1000)
    assert '\n' not in str(caught.value) and content(folder.path) == before
    assert folder.find('auto')[1]['num_update'] == 20


def test_a_file_that_cannot_grow(folder):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        failing_write(folder, 'cannot write .*step-00000030: File too large')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_seen_before_anything_is_written(folder, monkeypatch):
    usage = shutil.disk_usage(str(folder.path))
    monkeypatch.setattr(state_folder.shutil, 'disk_usage', lambda path: usage._replace(free=500))
    failing_write(folder, 'cannot write a training state to .* it needs 0.0 MB, the disk has 0.0 MB left')


def test_a_folder_that_cannot_be_written(folder):
    user = os.geteuid()
    os.chmod(str(folder.path), 0o500)
    try:
        if user == 0:                                          # to whom everything is allowed
            os.chown(str(folder.path), 65534, 65534)
            os.seteuid(65534)
        with pytest.raises(UserError, match='cannot write .*: Permission denied'):
            folder.write(30, fill(30), 1000)
    finally:
        os.seteuid(user)
        os.chmod(str(folder.path), 0o700)
    assert list(folder.states()) == [20, 10]


def test_unknown_keys_are_ignored(folder):
    path = folder.path / 'step-00000020'
    manifest = read_manifest(path)
    writer = StateWriter(path)
    writer.files = manifest['files']
    writer.finish(dict(json.loads('{"new": [1]}'), num_update=20), writer.files)
    (path / 'more').write_text('not listed')
    check_files(path, read_manifest(path))
    assert read_manifest(path)['new'] == [1] and state_path(path, 3).name == 'step-00000003'
