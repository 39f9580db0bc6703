"""The CUDA libraries that pip installed beside mxnet-cu112: loaded before MXNet, no CUDA on the system is needed."""
import ctypes
import glob
import importlib.metadata
import importlib.util
import os

WHEEL = 'mxnet-cu112'


def load_cuda_libraries():
    """Load them if MXNet is the GPU build. What cannot be loaded is left to MXNet, which then says what it lacks."""
    try:
        importlib.metadata.version(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return
    load_in_any_order(library_paths())


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
