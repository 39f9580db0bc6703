"""CUDA libraries are found and loaded, needed ones first, and only for the GPU build; GPUs it has no code for."""
import importlib.metadata
import shutil
import subprocess
import sys

import pytest

from common import cuda_libraries
from common.errors import UserError
from recognition import devices
from recognition.devices import parse_devices


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


# Stands in for the driver: GPU n has the handle 10 + n and the compute capability CAPABILITIES[n]
DRIVER = '''
static const int capabilities[][2] = {%s};
int cuInit(unsigned flags) { return %d; }
int cuDeviceGetCount(int *count) { *count = sizeof capabilities / sizeof capabilities[0]; return 0; }
int cuDeviceGet(int *device, int number) { *device = 10 + number; return 0; }
int cuDeviceGetAttribute(int *value, int name, int device) {
    if (name != 75 && name != 76) return 1;
    *value = capabilities[device - 10][name - 75];
    return 0;
}
'''


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Build a driver library that sees GPUs of such (major, minor); `code` is what its start gives."""
    compiler = shutil.which('cc') or shutil.which('gcc') or pytest.skip('no C compiler')

    def make(*capabilities, code=0):
        (tmp_path / 'driver.c').write_text(DRIVER % (', '.join('{%d, %d}' % one for one in capabilities), code))
        subprocess.run([compiler, '-shared', '-fPIC', '-o', 'driver.so', 'driver.c'], cwd=str(tmp_path), check=True)
        monkeypatch.setattr(cuda_libraries, 'DRIVER', str(tmp_path / 'driver.so'))
    return make


def test_capabilities_are_those_the_driver_says(driver):
    driver((8, 9), (9, 0), (6, 1))
    assert cuda_libraries.gpu_capabilities() == [(8, 9), (9, 0), (6, 1)]


def test_a_driver_that_does_not_start_sees_no_gpu(driver):
    driver((8, 9), code=100)
    assert cuda_libraries.gpu_capabilities() == []


def test_no_driver(monkeypatch):
    monkeypatch.setattr(cuda_libraries, 'DRIVER', 'libno_such_driver.so.1')
    assert cuda_libraries.gpu_capabilities() == []


@pytest.fixture
def gpus(monkeypatch):
    """GPUs of such capabilities that MXNet sees too; wheel: whether it is that of the package index."""
    def see(*capabilities, wheel=True):
        monkeypatch.setattr(devices, 'gpu_capabilities', lambda: list(capabilities))
        monkeypatch.setattr(devices, 'has_wheel', lambda: wheel)
        monkeypatch.setattr(devices, 'count_gpus', lambda: len(capabilities))
    return see


@pytest.mark.parametrize('capability', [(3, 7), (9, 0), (10, 0), (12, 0)])
def test_a_gpu_without_code_is_refused_at_the_start(gpus, capability):
    gpus((8, 0), capability)
    with pytest.raises(UserError) as caught:
        devices.contexts(parse_devices('gpu', None))
    assert 'GPU 1 has compute capability %d.%d, and mxnet-cu112 holds code for 5.0 to 8.9' % capability in str(
        caught.value) and 'nvcr.io/nvidia/mxnet' in str(caught.value)


@pytest.mark.parametrize('wanted, capabilities, wheel', [
    ('gpu', [(5, 0), (5, 2), (6, 1), (7, 5), (8, 6), (8, 9)], True),
    ('gpu:0', [(8, 0), (9, 0)], True),                         # the other one is not used
    ('gpu', [(9, 0)], False),                                  # the MXNet of a container
])
def test_gpus_that_can_be_used_pass(gpus, wanted, capabilities, wheel):
    gpus(*capabilities, wheel=wheel)
    found = devices.contexts(parse_devices(wanted, None))
    assert [context.device_type for context in found] == ['gpu'] * len(found) and found


def test_a_cpu_is_no_gpu_without_code(gpus):
    gpus((9, 0))
    assert [context.device_type for context in devices.contexts(parse_devices('cpu:2', None))] == ['cpu'] * 2
