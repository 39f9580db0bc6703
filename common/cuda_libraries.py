"""The CUDA libraries that pip installed beside mxnet-cu112: loaded before MXNet, no CUDA on the system is needed.

And which GPUs that MXNet has code for: it holds sm_50, 60, 70, 80 and 86, and no PTX that others could compile.
"""
import ctypes
import glob
import importlib.metadata
import importlib.util
import os

WHEEL = 'mxnet-cu112'
LOWEST, HIGHEST = (5, 0), (8, 9)     # compute capabilities it runs on: code for X.Y runs on X.Z from Y on
DRIVER = 'libcuda.so.1'
_MAJOR, _MINOR = 75, 76              # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def load_cuda_libraries():
    """Load them if MXNet is the GPU build. What cannot be loaded is left to MXNet, which then says what it lacks."""
    if has_wheel():
        load_in_any_order(library_paths())


def has_wheel():
    """Whether MXNet is the GPU build of the package index, and not one of a container."""
    try:
        importlib.metadata.version(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def library_paths():
    """Every nvidia/*/lib/*.so* of this Python's packages, sorted."""
    spec = importlib.util.find_spec('nvidia')
    folders = [] if spec is None else spec.submodule_search_locations
    return sorted(path for folder in folders for path in glob.glob(os.path.join(folder, '*', 'lib', '*.so*')))


def load_in_any_order(paths):
    """Load each library; one that needs another of them is tried again after it. Returns those that never loaded."""
    while paths:
        failed = [path for path in paths if not is_loaded(path)]
        if failed == paths:
            break
        paths = failed
    return paths


def is_loaded(path):
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def gpu_capabilities():
    """[(major, minor), ...]: compute capabilities of the GPUs, numbered as MXNet does; [] without a driver."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return []
    if driver.cuInit(0):
        return []
    count = _ask(driver.cuDeviceGetCount)
    gpus = [_ask(driver.cuDeviceGet, number) for number in range(count)]
    return [tuple(_ask(driver.cuDeviceGetAttribute, name, gpu) for name in (_MAJOR, _MINOR)) for gpu in gpus]


def _ask(function, *arguments):
    """The whole number that a function of the driver gives through its first argument; 0 if it fails."""
    answer = ctypes.c_int()
    return 0 if function(ctypes.byref(answer), *arguments) else answer.value
