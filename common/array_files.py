"""NumPy files: written row after row, so that no array has to fit in memory; read so that no file can do harm."""
import contextlib
import math
import os
import struct
import zipfile

import numpy as np

from common.errors import UserError

_BEGIN = b'\x93NUMPY\x01\x00'
_HEADER_SIZE = 128                   # of all headers here, so that the number of rows can be written last


def npy_header(dtype, shape):
    """The bytes before the numbers of an .npy file of version 1.0, in C order."""
    text = repr({'descr': np.lib.format.dtype_to_descr(np.dtype(dtype)), 'fortran_order': False, 'shape': tuple(shape)})
    text = text.encode('ascii').ljust(_HEADER_SIZE - len(_BEGIN) - 3) + b'\n'
    return _BEGIN + struct.pack('<H', len(text)) + text


class RowFile:
    """An .npy file that is being written; only when it is closed does it state how many rows it has."""

    def __init__(self, path, dtype, row_shape=()):
        self._dtype, self._row_shape, self.count = np.dtype(dtype), tuple(row_shape), 0
        self._stream = open(path, 'wb')
        self._stream.write(npy_header(self._dtype, (0,) + self._row_shape))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def add(self, rows):
        """rows: (n, ...) of the row shape."""
        self._stream.write(np.ascontiguousarray(rows, self._dtype).data)
        self.count += len(rows)

    def close(self):
        self._stream.seek(0)
        self._stream.write(npy_header(self._dtype, (self.count,) + self._row_shape))
        self._stream.close()


def map_array(path):
    """An .npy file of numbers, mapped, not read. UserError if it is damaged or states more than it holds."""
    try:
        with open(str(path), 'rb') as stream:
            _check_header(stream, os.path.getsize(str(path)))
        return np.load(str(path), mmap_mode='r', allow_pickle=False)
    except OSError as error:
        raise UserError('cannot read %s: %s' % (path, error.strerror or error)) from None
    except Exception as error:  # the header is a piece of Python: a damaged one reaches nearly any error of its parser
        raise UserError('%s is damaged: %s' % (path, _text(error))) from None


@contextlib.contextmanager
def open_arrays(path):
    """The arrays of an .npz file, {name: array}, each read when it is asked for; compressed ones are refused.

    UserError if it is damaged or states more than it holds, also if that is seen only while it is used.
    """
    try:
        _check_entries(path)
    except Exception as error:  # as above
        raise UserError('%s is damaged: %s' % (path, _text(error))) from None
    try:
        with np.load(str(path), allow_pickle=False) as arrays:
            yield arrays
    except (zipfile.BadZipFile, LookupError, ValueError, EOFError, OSError) as error:
        raise UserError('%s is damaged: %s' % (path, _text(error))) from None


def _check_entries(path):
    """ValueError unless what is read of an .npz is no larger than the file."""
    with zipfile.ZipFile(str(path)) as archive:
        entries, size = archive.infolist(), os.path.getsize(str(path))
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError('it is compressed')
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError('it states more bytes than it has')
        for entry in entries:
            with archive.open(entry) as stream:
                _check_header(stream, entry.file_size)


def _check_header(stream, size):
    """ValueError unless an .npy of `size` bytes holds the numbers that its header states."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError('version %d.%d of the format' % version)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.kind not in 'biuf':
        raise ValueError('it holds %s, not numbers' % dtype)
    needed = stream.tell() + dtype.itemsize * math.prod(shape)
    if min(shape, default=0) < 0 or needed > size:
        raise ValueError('it has %d bytes, its header states %d' % (size, needed))


def _text(error):
    return '%.120s' % ' '.join(str(error).split()) or type(error).__name__
