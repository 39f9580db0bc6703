"""Records -> batches: decoding on threads, labels checked, corrupt images replaced. Knows nothing of where the
records come from or in which order; every reader of training images uses it.
"""
import collections
import concurrent.futures
import ctypes
import logging
import os

import numpy as np

from common.errors import UserError
from common.images import CorruptImage, decode_checked, decode_many, image_size, to_planes
from common.mxnet_loader import mx
from common.recordio import unpack

log = logging.getLogger('shardface')

CHUNK = 8, 32                        # fewest and most images per task of the pool
GROUP = 32                            # images that go through each step together: decoding sweeps the caches
MAX_THREADS = 8                      # used unless told otherwise: some 60,000 faces of 112x112 a second
PATIENCE_SECONDS = 60                # then a line in the log says that a batch is late
CORRUPT_SHARE = 1000                 # one corrupt image in so many is tolerated per epoch, at least one
NAMED_RECORDS = 10                   # in an error message


class RecordDecoder:
    """What is done with one record. Holds settings only: any number of threads may use it."""

    def __init__(self, size, classes, augment):
        """size: (h, w) of the images; classes: SetClasses of each set; augment: recognition.augment.Augment."""
        self.size, self.classes, self.augment = size, classes, augment

    def open(self, payload, source):
        """Payload -> (Header, encoded image, source); CorruptImage if there is no image that may be decoded.

        source: number of the set that the record is of.
        """
        try:
            header, encoded = unpack(payload)
        except ValueError as error:
            raise CorruptImage(str(error)) from None
        if header.flag == 2 and len(encoded) == 0:
            raise CorruptImage('two numbers and no image: a metadata record')
        image_size(encoded)
        return header, encoded, source

    def decode(self, header, encoded, source):
        """What open() gave -> (image (h, w, 3) B, G, R, label).

        CorruptImage if the image cannot be used, ValueError if it can but its label is none of the classes of its set.
        """
        image = decode_checked(encoded, self.size)             # first: a record of garbage has a garbage label, too
        return image, self.classes[source].label(header)

    def decode_opened(self, encoded, label):
        """Encoded image that has been looked at and a label that is right -> as decode."""
        return decode_checked(encoded, self.size), label

    def finish(self, image, draws, out):
        """Fill out (3, h, w) uint8, planes R, G, B, with the image; draws: the row for Augment."""
        to_planes(self.augment.apply(image, draws), out)


class CorruptRecords:
    """Counts corrupt images of an epoch. Each is logged once; too many are an error."""

    def __init__(self, num_samples):
        """num_samples: images that this process reads in an epoch."""
        self.limit = max(1, num_samples // CORRUPT_SHARE)
        self._logged = set()
        self.begin_epoch()

    def begin_epoch(self):
        self._names = []

    @property
    def count(self):
        """Corrupt images met in this epoch."""
        return len(self._names)

    def add(self, name, reason):
        """UserError that names the records once there are more than the limit."""
        self._names.append(name)
        if name not in self._logged:
            self._logged.add(name)
            log.warning('corrupt image left out: %s: %s', name, reason)
        if self.count > self.limit:
            named = ', '.join(self._names[-NAMED_RECORDS:])
            raise UserError('%d corrupt images in one epoch, %d tolerated: %s; the last: %s. Repair or convert the set'
                            % (self.count, self.limit, named, reason))


class Batch:
    """A batch that is being decoded: rows of it are filled by tasks of the pool."""

    def __init__(self, records, draws, size):
        """records: see BatchDecoder.begin; draws (B, NUM_DRAWS)."""
        self.records, self.draws = records, draws.tolist()
        self.images, self._images = shared_array((len(records), 3) + tuple(size), np.uint8)
        self.labels, self._labels = shared_array((len(records),), np.int64)
        self.corrupt = []                                      # (row, reason), appended by the tasks
        self.tasks = []

    def decode_rows(self, decoder, start, stop):
        """One task of the pool."""
        for first in range(start, stop, GROUP):
            self._decode_group(decoder, range(first, min(first + GROUP, stop)))

    def _decode_group(self, decoder, rows):
        opened, alone = {}, []
        for row in rows:
            found = self.records.opened(row)
            if found is None:
                alone.append((row, (self.records.payload(row), self.records.source(row))))
            else:
                opened[row] = found
        again = []
        for row, image in zip(opened, decode_many([encoded for encoded, _ in opened.values()], decoder.size)):
            if image is None:
                again.append((row, opened[row]))
            else:
                self._finish(decoder, row, image, opened[row][1])
        images = self._each(decoder.decode_opened, again) + self._each(decoder.decode, self._each(decoder.open, alone))
        for row, (image, label) in images:
            self._finish(decoder, row, image, label)

    def _each(self, step, records):
        """(row, values) pairs -> (row, step(*values)), without the rows that turn out to be corrupt."""
        done = []
        for row, values in records:
            try:
                done.append((row, step(*values)))
            except CorruptImage as error:
                self.corrupt.append((row, str(error)))
            except ValueError as error:
                raise UserError('%s (%s)' % (error, self.records.name(row))) from None
        return done

    def _finish(self, decoder, row, image, label):
        self._labels[row] = label
        decoder.finish(image, self.draws[row], self._images[row])

    def decode_row(self, decoder, row, payload, source):
        """Put another record in a row. Errors as RecordDecoder.decode."""
        self._finish(decoder, row, *decoder.decode(*decoder.open(payload, source)))


class BatchDecoder:
    """A pool of threads that turns records into batches, several at a time."""

    def __init__(self, decoder, corrupt, num_threads=None):
        """decoder: RecordDecoder; corrupt: CorruptRecords; num_threads: None for one per core, MAX_THREADS at most."""
        self.decoder, self.corrupt = decoder, corrupt
        self.num_threads = num_threads or min(MAX_THREADS, usable_cores())
        self._pool = concurrent.futures.ThreadPoolExecutor(self.num_threads, 'decoder')
        self._batches = collections.deque()

    def __len__(self):
        """Batches that were begun and not taken."""
        return len(self._batches)

    def begin(self, records, draws):
        """Start decoding one batch.

        records: an object with a length and, called from the pool's threads, opened(row): (encoded image, label) of a
        record whose header was looked at before, or None; then payload(row) and source(row), the number of its set,
        are asked for. name(row) is for messages.
        draws: (B, NUM_DRAWS) for Augment.
        """
        batch = Batch(records, draws, self.decoder.size)
        chunk = min(max(len(records) // self.num_threads, CHUNK[0]), CHUNK[1])
        for start in range(0, len(records), chunk):
            stop = min(start + chunk, len(records))
            batch.tasks.append(self._pool.submit(batch.decode_rows, self.decoder, start, stop))
        self._batches.append(batch)

    def take(self, next_spare):
        """Wait for the oldest batch: MXNet arrays images (B, 3, h, w) uint8, labels (B,) int64.

        Corrupt images are replaced, in order of their rows, by next_spare() -> (payload, source, name). An error in
        a task is raised here, at once and every time.
        """
        batch = self._batches[0]
        wait_for(batch.tasks)
        for row, reason in sorted(batch.corrupt):
            self.corrupt.add(batch.records.name(row), reason)
            self._replace(batch, row, next_spare)
        self._batches.popleft()
        return batch.images, batch.labels

    def _replace(self, batch, row, next_spare):
        while True:
            payload, source, name = next_spare()
            try:
                return batch.decode_row(self.decoder, row, payload, source)
            except CorruptImage as error:
                self.corrupt.add(name, str(error))
            except ValueError as error:
                raise UserError('%s (%s)' % (error, name)) from None

    def drop(self):
        """Forget all batches that were begun; returns when no thread works on them any more."""
        tasks = [task for batch in self._batches for task in batch.tasks]
        for task in tasks:
            task.cancel()
        concurrent.futures.wait(tasks)
        self._batches.clear()

    def close(self):
        """End the threads."""
        self.drop()
        self._pool.shutdown()


def wait_for(tasks):
    """Returns when all tasks are done; raises the error of the first that fails. A line in the log if it takes long."""
    while True:
        late = concurrent.futures.wait(tasks, PATIENCE_SECONDS, concurrent.futures.FIRST_EXCEPTION).not_done
        for task in tasks:
            if task.done():
                task.result()
        if not late:
            return
        log.warning('no batch for %d s: reading the images takes very long', PATIENCE_SECONDS)


def usable_cores():
    """Cores this process may run on."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shared_array(shape, dtype):
    """(MXNet array on the CPU, NumPy view of its memory). Saves copying every batch.

    MXNet does not see what is written through the view: write only before the array is used.
    """
    array = mx.nd.empty(shape, ctx=mx.cpu(), dtype=dtype)
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * num_bytes).from_address(address.value)
    return array, np.frombuffer(memory, dtype).reshape(shape)
