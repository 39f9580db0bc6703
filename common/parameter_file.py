"""MXNet's .params files: their sizes are checked before MXNet, which believes what they state, gets them.

All numbers little-endian:
    file    0x112 uint64 | 0 uint64 | arrays: count uint64, then each | names: count uint64, then length uint64, text
    array   0xf993fac9 uint32 | storage int32, 0 dense | shape | device 2 x int32 | type int32 | numbers
            0xf993fac8 uint32 | shape | device | type | numbers                        (before MXNet 1.0)
            dimensions uint32, each uint32 | device | type | numbers                   (before MXNet 0.11)
    shape   dimensions int32, each int64
"""
import os
import struct

from common.errors import UserError
from common.mxnet_loader import mx

FILE, WITH_STORAGE, WITHOUT_STORAGE = 0x112, (0xf993fac9, 0xf993faca), 0xf993fac8
ITEM_SIZE = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8}         # bytes of a number by type
MAX_DIMENSIONS = 32


def load_parameters(path):
    """{name: MXNet array} of a .params file. UserError if it is none or is damaged."""
    try:
        check_parameters(path)
        named = mx.nd.load(str(path))
    except OSError as error:
        raise UserError('cannot read %s: %s' % (path, error.strerror)) from None
    except (ValueError, struct.error, mx.MXNetError):
        named = None
    if not isinstance(named, dict):
        raise UserError('%s is not an MXNet parameter file or is damaged' % path)
    return named


def check_parameters(path):
    """ValueError or struct.error unless the file holds all that it states."""
    with open(str(path), 'rb') as stream:
        reader = _Reader(stream, os.path.getsize(str(path)))
        magic, _, count = reader.numbers('<QQQ')
        if magic != FILE:
            raise ValueError('no parameter file')
        for _ in range(count):                                 # ends with the file, whatever the count
            reader.skip_array()
        num_names, = reader.numbers('<Q')
        if num_names != count:
            raise ValueError('%d arrays, %d names' % (count, num_names))
        names = {reader.text(*reader.numbers('<Q')) for _ in range(num_names)}
        if len(names) != count:
            raise ValueError('a name twice')


class _Reader:

    def __init__(self, stream, size):
        self._stream, self._size = stream, size

    def numbers(self, form):
        return struct.unpack(form, self._stream.read(struct.calcsize(form)))

    def text(self, length):
        self._require(length)
        return self._stream.read(length).decode('utf-8')

    def skip_array(self):
        magic, = self.numbers('<I')
        if magic in WITH_STORAGE and self.numbers('<i') != (0,):
            raise ValueError('a sparse array')
        if magic in WITH_STORAGE or magic == WITHOUT_STORAGE:
            shape = self._shape(self.numbers('<i')[0], 'q')
        else:
            shape = self._shape(magic, 'I')
        _, _, kind = self.numbers('<iii')
        size = ITEM_SIZE.get(kind, 0)
        if not size:
            raise ValueError('numbers of type %d' % kind)
        for length in shape:
            size *= length
        self._require(size)
        self._stream.seek(size, os.SEEK_CUR)

    def _shape(self, count, form):
        if not 1 <= count <= MAX_DIMENSIONS:
            raise ValueError('%d dimensions' % count)
        shape = self.numbers('<%d%s' % (count, form))
        if min(shape) < 1:
            raise ValueError('an empty array')
        return shape

    def _require(self, size):
        if size > self._size - self._stream.tell():
            raise ValueError('it ends too early')
