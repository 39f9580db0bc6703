"""Putting any number of records into a uniformly random order, out of core, with sequential reads and writes.

Every record draws a 64-bit number; the order is that of the numbers, so each order is equally likely, and it depends
on the seed alone, not on the memory. What fits in memory is sorted there and given out. Else the range of the
numbers is cut into equal intervals, one for each bucket. Whenever the memory is full, what it holds is sorted, and
each interval is appended to the file of its bucket. In the end bucket after bucket is sorted and given out.
Images are not copied: what is given out, or written, is where they lie.

    bucket file    chunks, each of   number of records n, uint64 | n x ENTRY | the n images, one behind the other
"""
import concurrent.futures
import functools
import mmap
import os

import numpy as np

from common.ahead import ahead
from common.errors import UsageError, UserError
from common.recordio import write_pieces

ENTRY = np.dtype([('draw', '<u8'), ('number', '<i8'), ('id', '<u8'), ('start', '<i8'), ('size', '<u4'), ('odd', '<u4')])
MIN_PIECE = 1 << 16                  # bytes; smaller pieces would make the disk seek
AT_ONCE = 2048                       # records given out at once
_COUNT = np.dtype('<u8')


def num_buckets(total_bytes, memory):
    """Buckets for so many bytes of records. UsageError if the memory (bytes) is too small for them."""
    if total_bytes <= memory * 0.7:
        return 1
    buckets = int(total_bytes // (memory * 0.4)) + 1
    if buckets * MIN_PIECE > memory * 0.5:
        least = int((total_bytes * MIN_PIECE / 0.2) ** 0.5) >> 20
        raise UsageError('--memory %d is too small to shuffle %d MB with sequential reads: give at least %d'
                         % (memory >> 20, total_bytes >> 20, least + 1))
    return buckets


class Block:
    """Images that lie in one piece of memory, in the order of their set."""

    def __init__(self, data, entries, forget=None):
        """data: bytes-like; entries: array of ENTRY: `start` is a place in data, `odd` is 1 where the image may hold
        the magic number at a multiple of 4, `draw` is not set; forget() gives the memory back.
        """
        self.data, self.entries, self._forget = memoryview(data), entries, forget

    def __len__(self):
        return len(self.entries)

    def images(self):
        """List of memoryviews."""
        return [self.data[start:stop] for start, stop in zip(*bounds_of(self.entries))]

    def only(self, rows):
        """Block of some of the images: their numbers, or bool (n,)."""
        return Block(self.data, self.entries[rows], self._forget)

    def copied(self, images):
        """Block that holds these images in place of its own, whose memory it gives back."""
        self.entries['size'] = [len(image) for image in images]
        self.entries['start'] = starts_of(self.entries['size'])
        data = b''.join(images)
        self.forget()
        return Block(data, self.entries)

    def forget(self):
        """Give the memory back, if somebody else lent it."""
        if self._forget:
            self._forget()


def starts_of(sizes):
    """Where things of these sizes begin that stand one behind the other, int64 (n,)."""
    return np.cumsum(sizes, dtype=np.int64) - sizes


def bounds_of(entries):
    """Two lists: where the images begin and end."""
    return entries['start'].tolist(), (entries['start'] + entries['size']).tolist()


class Shuffler:
    """Records in by add(), then out by batches() in random order; a context manager, as a thread writes the buckets."""

    def __init__(self, folder, total_bytes, memory, seed):
        """folder: exists, for the buckets; total_bytes: of all records, about; memory in bytes; seed: 0 or more."""
        self._folder, self._draws = folder, np.random.PCG64(seed)
        self.num_buckets = num_buckets(total_bytes, memory)
        self._limit = memory * 0.4 if self.num_buckets > 1 else float('inf')
        self._held, self._size = [], 0
        self._pool, self._writing = concurrent.futures.ThreadPoolExecutor(1), None
        self.num_records = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._pool.shutdown()

    def add(self, block):
        """Add the records of a Block, which is kept until its memory is needed."""
        block.entries['draw'] = self._draws.random_raw(len(block))
        self._held.append(block)
        self._size += len(block.data)
        self.num_records += len(block)
        if self._size > self._limit:
            self._spill()

    def batches(self):
        """Yield (entries, images): an array of ENTRY and a list of memoryviews.

        They may be used until the one after the next is asked for: later, images are read from the disk again.
        """
        if self.num_buckets == 1:
            yield from _batches(self._held)
            return
        self._spill()
        self._wait()
        before = None
        for block in ahead(map(_take, filter(os.path.exists, map(self._path, range(self.num_buckets))))):
            for batch in _batches([block]):
                yield batch
                if before:                                     # its last images are not in use any more
                    before = before.forget()
            before = block

    def _path(self, bucket):
        return os.path.join(self._folder, '%06d.bucket' % bucket)

    def _spill(self):
        """Begin to append what is held to the buckets; there is time for it until the memory is full again."""
        self._wait()
        if self._held:
            self._writing = self._pool.submit(self._append, self._held)
        self._held, self._size = [], 0

    def _wait(self):
        if self._writing:
            self._writing.result()

    def _append(self, blocks):
        entries, owners = _in_order(blocks)
        buckets = (entries['draw'] >> np.uint64(32)) * np.uint64(self.num_buckets) >> np.uint64(32)
        stops = np.searchsorted(buckets, np.arange(1, self.num_buckets + 1, dtype=np.uint64)).tolist()
        for bucket, (first, stop) in enumerate(zip([0] + stops, stops)):
            if first < stop:
                mine = entries[first:stop]
                head = _COUNT.type(len(mine)).tobytes() + mine.tobytes()
                append(self._path(bucket), [head] + _images(blocks, mine, owners[first:stop]))
        for block in blocks:
            block.forget()


def _in_order(blocks):
    """Entries of all blocks in the order of their draws, and the number of the block of each."""
    entries = np.concatenate([block.entries for block in blocks])
    owners = np.repeat(np.arange(len(blocks)), list(map(len, blocks)))
    order = np.argsort(entries['draw'], kind='stable')
    return entries[order], owners[order]


def _images(blocks, entries, owners):
    datas = [block.data for block in blocks]
    return [datas[owner][start:stop] for owner, start, stop in zip(owners.tolist(), *bounds_of(entries))]


def _batches(blocks):
    entries, owners = _in_order(blocks)
    for start in range(0, len(entries), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        yield entries[rows], _images(blocks, entries[rows], owners[rows])


def _take(path):
    """The whole file of a bucket, which goes, as a Block, read front to back."""
    with open(path, 'rb') as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    os.remove(path)
    np.frombuffer(mapped, np.uint8)[::mmap.PAGESIZE].max()     # each page is looked at, so all are read in order
    chunks, offset = [], 0
    while offset < len(mapped):
        count = int(np.frombuffer(mapped, _COUNT, 1, offset)[0])
        offset += _COUNT.itemsize + count * ENTRY.itemsize
        chunks.append(np.frombuffer(mapped, ENTRY, count, offset - count * ENTRY.itemsize).copy())
        chunks[-1]['start'] = offset + starts_of(chunks[-1]['size'])
        offset += int(chunks[-1]['size'].sum())
    return Block(mapped, np.concatenate(chunks), functools.partial(_forget, mapped))


def _forget(mapped):
    if hasattr(mapped, 'madvise'):
        mapped.madvise(mmap.MADV_DONTNEED)


def append(path, pieces):
    """Append bytes-like pieces to a file, past all buffers. UserError if the disk refuses."""
    try:
        with open(path, 'ab', buffering=0) as stream:
            write_pieces(stream.fileno(), pieces)
    except OSError as error:
        raise UserError('cannot write the temporary file %s: %s' % (path, error.strerror)) from None
