"""Putting any number of records into a uniformly random order, out of core, with sequential reads and writes.

Every record draws a 64-bit number; the order is that of the numbers, so each order is equally likely, and it depends
on the seed alone, not on the memory. The range of the numbers is cut into equal intervals, one for each bucket.
While records are added, they are appended to their buckets, which overflow into files. In the end bucket after
bucket is read in one piece, sorted in memory and given out. One bucket that fits in memory never touches the disk.
"""
import os

import numpy as np

from common.errors import UsageError, UserError

ENTRY = np.dtype([('draw', '<u8'), ('number', '<i8'), ('id', '<u8'), ('size', '<u4')])
MIN_BUFFER = 1 << 16                 # bytes; smaller pieces would make the disk seek
_SLICE = 1 << 14                     # records given out at once


def num_buckets(total_bytes, memory):
    """Buckets for so many bytes of records. UsageError if the memory (bytes) is too small for them."""
    if total_bytes <= memory * 0.7:
        return 1
    buckets = int(total_bytes // (memory * 0.4)) + 1
    if buckets * MIN_BUFFER > memory * 0.5:
        least = int((total_bytes * MIN_BUFFER / 0.2) ** 0.5) >> 20
        raise UsageError('--memory %d is too small to shuffle %d MB with sequential reads: give at least %d'
                         % (memory >> 20, total_bytes >> 20, least + 1))
    return buckets


class Shuffler:
    """Records in by add(), then out by batches() in random order."""

    def __init__(self, folder, total_bytes, memory, seed):
        """folder: exists, for the buckets; total_bytes: of all records, about; memory in bytes; seed: 0 or more."""
        self._folder, self._draws = folder, np.random.PCG64(seed)
        count = num_buckets(total_bytes, memory)
        self._limit = memory // 2 // count if count > 1 else None
        self._images = [bytearray() for _ in range(count)]
        self._entries = [bytearray() for _ in range(count)]
        self.num_records = 0

    def add(self, numbers, ids, images):
        """Add records: class ids, record ids (lists of int) and encoded images (list of bytes-like)."""
        entries = np.empty(len(images), ENTRY)
        entries['draw'] = self._draws.random_raw(len(images))
        entries['number'], entries['id'], entries['size'] = numbers, ids, [len(image) for image in images]
        buckets = ((entries['draw'] >> np.uint64(32)) * np.uint64(len(self._images)) >> np.uint64(32)).tolist()
        packed, size = entries.tobytes(), ENTRY.itemsize
        for index, (bucket, image) in enumerate(zip(buckets, images)):
            self._images[bucket] += image
            self._entries[bucket] += packed[index * size:(index + 1) * size]
        self.num_records += len(images)
        if self._limit:
            self._spill()

    def batches(self):
        """Yield (entries, images): an array of ENTRY and a list of memoryviews, valid until the next one."""
        for bucket in range(len(self._images)):
            images = memoryview(self._take(self._images, bucket, 'images'))
            entries = np.frombuffer(self._take(self._entries, bucket, 'entries'), ENTRY)
            stops = np.cumsum(entries['size'], dtype=np.int64)
            order = np.argsort(entries['draw'], kind='stable')
            for start in range(0, len(order), _SLICE):
                part = order[start:start + _SLICE]
                bounds = zip((stops[part] - entries['size'][part]).tolist(), stops[part].tolist())
                yield entries[part], [images[first:stop] for first, stop in bounds]

    def _path(self, bucket, kind):
        return os.path.join(self._folder, '%06d.%s' % (bucket, kind))

    def _spill(self):
        for bucket, (images, entries) in enumerate(zip(self._images, self._entries)):
            if len(images) + len(entries) > self._limit:
                for buffer, kind in (images, 'images'), (entries, 'entries'):
                    append(self._path(bucket, kind), buffer)
                    del buffer[:]

    def _take(self, buffers, bucket, kind):
        """All bytes of a bucket, whose buffer and file go."""
        path, rest = self._path(bucket, kind), buffers[bucket]
        buffers[bucket] = None
        if not os.path.exists(path):
            return rest
        stored = os.path.getsize(path)
        whole = bytearray(stored + len(rest))
        with open(path, 'rb', buffering=0) as stream:
            read_all(stream, memoryview(whole)[:stored])
        whole[stored:] = rest
        os.remove(path)
        return whole


def append(path, data):
    """Append bytes to a file, past all buffers. UserError if the disk refuses."""
    try:
        with open(path, 'ab', buffering=0) as stream, memoryview(data) as view:
            written = 0
            while written < len(view):
                written += stream.write(view[written:])
    except OSError as error:
        raise UserError('cannot write the temporary file %s: %s' % (path, error.strerror)) from None


def read_all(stream, view):
    """Fill a memoryview from an unbuffered stream. OSError if the file is shorter."""
    while len(view):
        count = stream.readinto(view)
        if not count:
            raise OSError(5, 'a temporary file has lost its end')
        view = view[count:]
