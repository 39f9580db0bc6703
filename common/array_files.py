"""NumPy files written row after row, so that no array has to fit in memory."""
import struct

import numpy as np

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
