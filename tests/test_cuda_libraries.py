"""CUDA libraries are found and loaded, needed ones first, and only for the GPU build."""
import importlib.metadata
import sys

import pytest

from common import cuda_libraries


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """Files named as in NVIDIA's wheels; loading one fails until what it needs is loaded. Returns what was loaded."""
    needs = {'cublas/lib/libcublas.so.11': ['libcublasLt.so.11'], 'cublas/lib/libcublasLt.so.11': [],
             'cudnn/lib/libcudnn.so.8': ['libcublas.so.11', 'libnvrtc.so.11.2'], 'nvrtc/lib/libnvrtc.so.11.2': [],
             'odd/lib/libodd.so.1': ['libmissing.so']}
    for name in list(needs) + ['cublas/include/cublas.h']:
        path = tmp_path / 'nvidia' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('')
    loaded = []

    def load(path, mode):
        name = '/'.join(path.split('/')[-3:])
        if any(need not in loaded for need in needs[name]):
            raise OSError('cannot open shared object file')
        loaded.append(name.split('/')[-1])
    monkeypatch.setattr(cuda_libraries.ctypes, 'CDLL', load)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'nvidia', raising=False)
    return loaded


def test_needed_libraries_come_first(libraries):
    left = cuda_libraries.load_in_any_order(cuda_libraries.library_paths())
    assert libraries == ['libcublasLt.so.11', 'libnvrtc.so.11.2', 'libcublas.so.11', 'libcudnn.so.8']
    assert [path.split('/')[-1] for path in left] == ['libodd.so.1']


def test_nothing_is_loaded_for_the_cpu_build(libraries, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)
    monkeypatch.setattr(importlib.metadata, 'version', version)
    cuda_libraries.load_cuda_libraries()
    assert libraries == []


def test_all_is_loaded_for_the_gpu_build(libraries, monkeypatch):
    monkeypatch.setattr(importlib.metadata, 'version', lambda name: '1.9.1')
    cuda_libraries.load_cuda_libraries()
    assert 'libcudnn.so.8' in libraries


def test_no_wheels_of_nvidia(monkeypatch):
    monkeypatch.setattr(cuda_libraries.importlib.util, 'find_spec', lambda name: None)
    assert cuda_libraries.library_paths() == []
