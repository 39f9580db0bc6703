"""Folders that last as long as the process that works in them: what a killed one left is known by its missing lock."""
import contextlib
import glob
import os
import shutil

from common.errors import UserError

try:
    import fcntl
except ImportError:                  # not a POSIX system: no locks, so every folder of that name is a leftover
    fcntl = None


@contextlib.contextmanager
def locked(folder):
    """Hold the lock of a folder, made if it is missing, while the block runs."""
    os.makedirs(folder, exist_ok=True)
    handle = _lock(folder)
    try:
        yield folder
    finally:
        if handle is not None:
            os.close(handle)


def remove_leftovers(pattern):
    """Remove the folders of a glob pattern that nobody holds; returns their paths. UserError if one is held."""
    removed = []
    for folder in filter(os.path.isdir, glob.glob(pattern)):
        try:
            handle = _lock(folder)
        except BlockingIOError:
            raise UserError('another process is writing %s: wait for it, or choose another output' % folder) from None
        shutil.rmtree(folder)
        removed.append(folder)
        if handle is not None:
            os.close(handle)
    return removed


def _lock(folder):
    """Handle that holds the lock, None where there are no locks. BlockingIOError if another process has it."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        os.close(handle)
        return None                  # a file system without locks
    return handle
