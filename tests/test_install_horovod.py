import os
import pathlib
import subprocess
import sys

import pytest

from common.errors import UserError
from recognition import check_horovod, install_horovod
from recognition.collective import LocalCollective, connect, import_horovod
from recognition.processes import ALONE, Place, find_place


def test_flags_follow_the_mxnet_that_is_there():
    cpu = install_horovod.flags('mxnet', mpi=False, no_gpu=False)
    assert cpu == {'HOROVOD_WITH_MXNET': '1', 'HOROVOD_WITH_GLOO': '1', 'HOROVOD_WITHOUT_MPI': '1',
                   'HOROVOD_WITHOUT_PYTORCH': '1', 'HOROVOD_WITHOUT_TENSORFLOW': '1'}
    assert install_horovod.flags('mxnet-cu112', False, False) == dict(cpu, HOROVOD_GPU_OPERATIONS='NCCL')
    assert install_horovod.flags('mxnet-cu112', False, True) == cpu
    assert 'HOROVOD_WITH_MPI' in install_horovod.flags('mxnet', True, False)


def test_every_python_of_the_build_can_import_mxnet(tmp_path):
    (tmp_path / 'sitecustomize.py').write_text(install_horovod.START)
    environ = install_horovod.build_environment(dict(os.environ), {'A': 'b'}, 3, str(tmp_path))
    assert environ['A'] == 'b' and environ['MAKEFLAGS'] == '-j3'
    subprocess.run([sys.executable, '-c', 'import mxnet, os; os._exit(0)'], env=environ, cwd=str(tmp_path), check=True,
                   timeout=60)


@pytest.mark.parametrize('output, said', [
    ("ModuleNotFoundError: No module named 'mxnet'", 'MXNet is not installed'),
    ('CMake Error: CMAKE_CXX_COMPILER not set', 'apt-get install g++ make'),
    ('c++: fatal error: Killed signal terminated program cc1plus', '--jobs 1'),
    ('-- yes\nfoo.cc:3: error: no such thing\nmore', 'foo.cc:3: error: no such thing'),
    ('nothing to go by', 'its last words: nothing to go by'),
])
def test_a_failed_build_is_told_in_words(tmp_path, output, said):
    with pytest.raises(UserError) as caught:
        install_horovod.call([sys.executable, '-c', 'import sys; print(%r); sys.exit(1)' % output], 'building Horovod',
                             dict(os.environ), str(tmp_path / 'log'))
    assert said in str(caught.value) and str(tmp_path / 'log') in str(caught.value)
    assert output in (tmp_path / 'log').read_text()


def test_the_line_of_a_failed_check_is_passed_on():
    text = '[1,0]<stderr>:error: allgather gave [0.], not [0 1]\nProcess 0 exit with status code 1.'
    assert install_horovod.explain_check(text) == 'allgather gave [0.], not [0 1]'


class WrongCollective(LocalCollective):
    def broadcast(self, arrays, name):
        arrays[0][:] = 3


def test_the_check_finds_a_wrong_operation():
    check_horovod.check_operations(LocalCollective())
    with pytest.raises(UserError, match='broadcast gave'):
        check_horovod.check_operations(WrongCollective())


def hidden(monkeypatch, tmp_path, text):
    """Put a module horovod.mxnet of this text before a real one."""
    for name in [name for name in sys.modules if name.partition('.')[0] == 'horovod']:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / 'horovod'
    folder.mkdir()
    (folder / '__init__.py').write_text('')
    if text is not None:
        (folder / 'mxnet.py').write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize('text, said', [
    (None, 'several processes need Horovod .*python -m recognition.install_horovod'),
    ('raise ImportError("Extension horovod.mxnet has not been built")',
     'not for this MXNet .*has not been built.*--force'),
    ('import ctypes; ctypes.CDLL("/no/such/mpi_lib.so")', 'not for this MXNet'),
])
def test_a_missing_or_unfit_horovod_is_one_line_with_the_remedy(monkeypatch, tmp_path, text, said):
    hidden(monkeypatch, tmp_path, text)
    with pytest.raises(UserError, match=said):
        import_horovod()


def test_one_process_does_without_horovod(monkeypatch, tmp_path):
    hidden(monkeypatch, tmp_path, 'raise RuntimeError("imported")')
    assert type(connect(ALONE)) is LocalCollective
    with pytest.raises(UserError):
        connect(ALONE, wanted=True)


@pytest.mark.parametrize('environ, place', [
    ({}, ALONE), ({'HOROVOD_RANK': '1'}, ALONE),
    ({'HOROVOD_RANK': '3', 'HOROVOD_SIZE': '4', 'HOROVOD_LOCAL_RANK': '1', 'HOROVOD_LOCAL_SIZE': '2'},
     Place(3, 4, 1, 2)),
    ({'OMPI_COMM_WORLD_RANK': '1', 'OMPI_COMM_WORLD_SIZE': '2'}, Place(1, 2, 0, 1)),
    ({'PMI_RANK': '0', 'PMI_SIZE': '2', 'MPI_LOCALRANKID': '0', 'MPI_LOCALNRANKS': '2'}, Place(0, 2, 0, 2)),
])
def test_launchers_are_known_by_their_environment(environ, place):
    assert find_place(environ) == place


@pytest.mark.parametrize('rank, size', [('2', '2'), ('x', '2'), ('-1', '2'), ('0', '0')])
def test_an_environment_that_makes_no_sense_is_refused(rank, size):
    with pytest.raises(UserError, match='HOROVOD_RANK=%s HOROVOD_SIZE=%s' % (rank, size)):
        find_place({'HOROVOD_RANK': rank, 'HOROVOD_SIZE': size})


def test_help_names_the_command():
    root = pathlib.Path(install_horovod.__file__).parent.parent
    done = subprocess.run([sys.executable, '-m', 'recognition.install_horovod', '--help'], cwd=str(root), check=True,
                          stdout=subprocess.PIPE, timeout=60)
    assert b'python -m recognition.install_horovod' in done.stdout
