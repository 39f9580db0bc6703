"""A light index of a shuffled .rec: where a record begins every 2 MB or so. Text, beside the .rec, like an .idx:

    number of the record in the file, tab, offset          and, as the last line,
    records of the file, tab, bytes of the file

A reader of sets of hundreds of GB need not look at every record header before it begins.
"""
import os

import numpy as np

from common.errors import UserError
from common.record_index import read_index

CHUNK_BYTES = 1 << 21


class ChunkIndexWriter:
    """Learns where records are while a .rec is written, and writes the index in the end."""

    def __init__(self):
        self._lines, self._count, self._next = [], 0, 0

    def add(self, offsets):
        """The next records of the file begin at `offsets`, rising int64 (n,)."""
        row = int(np.searchsorted(offsets, self._next))
        while row < len(offsets):
            self._lines.append(b'%d\t%d\n' % (self._count + row, offsets[row]))
            self._next = offsets[row] + CHUNK_BYTES
            row = int(np.searchsorted(offsets, self._next))
        self._count += len(offsets)

    def write(self, path, size):
        """Write the index to `path`; size: bytes of the finished .rec. OSError if the disk refuses.

        It is on the disk only when the folder that it is written into is.
        """
        with open(path, 'wb') as stream:
            stream.writelines(self._lines)
            stream.write(b'%d\t%d\n' % (self._count, size))


def chunk_index_path(path_imgrec):
    """train.rec -> train.chunks"""
    return os.path.splitext(path_imgrec)[0] + '.chunks'


def read_chunk_index(record_file):
    """(numbers, offsets) int64 of some records of a RecordFile, the first among them, and how many there are in all.

    None without an index. UserError if it does not belong to the file.
    """
    path = chunk_index_path(record_file.path)
    if not os.path.isfile(path):
        return None
    numbers, offsets = read_index(path)
    if len(numbers) < 2 or numbers[0] != 0 or offsets[0] != 0 or not (offsets[1:] > offsets[:-1]).all():
        raise UserError('%s is damaged: remove it, and all records will be looked at instead' % path)
    if offsets[-1] != record_file.size:
        raise UserError('%s has %d bytes, but %s says %d: it was cut or belongs to another set; copy or convert it '
                        'again' % (record_file.path, record_file.size, os.path.basename(path), offsets[-1]))
    record_file.end_of(int(offsets[-2]))
    return numbers[:-1], offsets[:-1], int(numbers[-1])
