"""Writing so that nothing half-written ever bears its final name."""
import contextlib
import errno
import glob
import os
import pathlib
import shutil

from common.errors import UserError

OLD = '.old.partial'                 # of a folder that is being replaced
MANY = 1000                          # files that are synced one by one


@contextlib.contextmanager
def replacing(path):
    """Give a temporary path beside `path` to write a file or a folder at; it takes the place of `path` at the end.

    If the block fails, what it wrote is removed and `path` stays as it was. UserError if it cannot be written.
    """
    path = pathlib.Path(os.path.abspath(str(path)))
    temporary = path.with_name('.%s.%d.partial' % (path.name, os.getpid()))
    try:
        yield temporary
        sync_all([temporary] if temporary.is_file() else sorted(temporary.rglob('*')) + [temporary])
        old = path.with_name('.%s.%d%s' % (path.name, os.getpid(), OLD))
        if path.is_dir():
            os.replace(str(path), str(old))
        os.replace(str(temporary), str(path))
        sync(path.parent)                # or the new name could be lost with the power
        discard(old)
    except OSError as error:
        raise UserError('cannot write %s: %s' % (path, error.strerror or error)) from None
    finally:
        discard(temporary)


def nearest_folder(path):
    """Absolute path of the folder that is there and in which `path`, or folders that lead to it, would be made."""
    folder = os.path.abspath(path)
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def sync_all(paths):
    """Have many files reach the disk."""
    if len(paths) > MANY and hasattr(os, 'sync'):
        os.sync()                    # thousands of small files one by one take minutes
        return
    for path in paths:
        sync(path)


def sync(path):
    """Have the content of a file, or the names in a folder, reach the disk."""
    handle = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if path.is_file() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise                        # some network file systems cannot do it for a folder
    finally:
        os.close(handle)


def clear_leftovers(folder, start):
    """Remove what killed writers left in `folder` of names that begin with start.

    A folder that was put aside when its writer was killed between two renames gets its name back.
    """
    for path in sorted(pathlib.Path(folder).glob('.%s*.partial' % glob.escape(start))):
        home = path.with_name(path.name[1:-len(OLD)].rpartition('.')[0]) if path.name.endswith(OLD) else None
        if home is not None and not home.exists():
            os.replace(str(path), str(home))
        else:
            discard(path)


def discard(path):
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(str(path))
    elif path.exists():
        path.unlink()
