"""Training images of shuffled sets without an index: read front to back, shuffled again in memory.

The order is a function of (seed, epoch, rank); see shuffle_buffer. Of the n images of an epoch, the process of
rank r sees those of its part; with B images per batch and R processes all of them take
floor(n / (B * R)) batches. What is left over, others in every epoch, stands in for corrupt images.
"""
import contextlib
import logging

import numpy as np

from common.errors import UsageError
from common.face_labels import images_of_large_classes
from common.sequential_set import open_sequential_set
from recognition.augment import Augment
from recognition.batch_iter import FaceBatchIter
from recognition.joined_sets import JoinedChunks, check_sets
from recognition.mixing import MixtureMeter, is_sorted, measure_stored_order
from recognition.shuffle_buffer import ChunkTable, EpochPlan, RecordStream

log = logging.getLogger('shardface')

MEGABYTE = 1 << 20
MAX_SPARES = 1024                    # images kept in memory to stand in for corrupt ones, besides what is left over


def get_sequential_face_iter(path_imgrec, record_reader='threaded', **options):
    """SequentialFaceIter; options: its arguments."""
    if record_reader != 'threaded':
        raise UsageError("record_reader=%s: MXNet's own reader fails for good at one corrupt image and crops images of "
                         'other sizes; set record_reader=threaded, which is also faster (docs/data.md)' % record_reader)
    return SequentialFaceIter(path_imgrec, **options)


def _select(found, images_filter, label_format):
    """(n,) bool: which images to train on; None for all."""
    if images_filter < 2:
        return None
    kept = np.zeros(found.num_records, bool)
    kept[images_of_large_classes(found, images_filter, label_format)] = True
    return kept


def _warn_if_sorted(table, classes):
    stored = measure_stored_order(table, classes.label_format)
    if is_sorted(stored):
        log.warning('%s: %.0f %% of neighbouring records have the same label: the set is sorted by label, which trains '
                    'badly; convert it with common/rec2shufrec.py', classes.path, 100 * stored.repeats)


class StreamedRecords:
    """The records of one batch, for BatchDecoder."""

    def __init__(self, rows):
        """rows: (window, row) pairs."""
        self._rows = rows

    def __len__(self):
        return len(self._rows)

    def payload(self, row):
        window, number = self._rows[row]
        return window.payload(number)

    def opened(self, row):
        window, number = self._rows[row]
        return window.opened(number)

    def source(self, row):
        window, number = self._rows[row]
        return window.source(number)

    def name(self, row):
        window, number = self._rows[row]
        return window.name(number)


class SequentialFaceIter(FaceBatchIter):
    """Batches of one or several shuffled sets."""

    def __init__(self, path_imgrec, batch_size, data_shape, num_classes=None, seed=0, rank=0, world_size=1,
                 shuffle=True, threads=None, rand_mirror=False, cutoff=0, color=0, images_filter=0,
                 shuffle_chunk_size=256):
        """As FaceImageIter; shuffle_chunk_size: memory for the shuffling, MB (2**20 bytes).

        Half of it is what is being used, and the other half is filled meanwhile; the batches begin when the first
        half, or the whole set, is there.
        """
        super().__init__(batch_size, data_shape, seed, rank, world_size, threads)
        if shuffle_chunk_size < 1:
            raise UsageError('shuffle_chunk_size %s: at least 1 (MB) is needed' % shuffle_chunk_size)
        self._shuffle, self._buffer_size = shuffle, shuffle_chunk_size * MEGABYTE
        self._stream, self._next, self._meter = None, None, MixtureMeter()
        paths = [path_imgrec] if isinstance(path_imgrec, str) else path_imgrec
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(open_sequential_set(path, images_filter > 1)) for path in paths]
            classes = check_sets(found, num_classes)
            counts = [face_set.num_records for face_set in found]
            tables = self._cut(found, classes, images_filter)
        for table, one in zip(tables, classes):
            _warn_if_sorted(table, one)
        self._table = JoinedChunks(tables, classes)
        self._start(classes, counts, int(self._table.counts.sum()), Augment(rand_mirror, color, cutoff))
        log.info('%s: %d images, %d classes, read front to back in %d chunks and shuffled in %d MB; %d batches of %d '
                 'per epoch, seed %d, %d decoding threads', self.path, self.num_samples, self.num_classes,
                 len(self._table), shuffle_chunk_size, self.batches_per_epoch, batch_size, seed,
                 self._decoder.num_threads)

    def _cut(self, found, classes, images_filter):
        """ChunkTable of each set, all of about the same number of chunks: each has its share of the buffer."""
        sizes = [face_set.record_file.size for face_set in found]
        return [ChunkTable(face_set, _select(face_set, images_filter, one.label_format),
                           self._buffer_size * size // sum(sizes))
                for face_set, one, size in zip(found, classes, sizes)]

    def _begin_order(self, batch):
        plan = self._plan(self.epoch)
        left_over = sum(plan.counts) - self.batches_per_epoch * self.batch_size
        self._take_stream(plan)
        self._keep_spares(left_over)
        if 0 < batch < self.batches_per_epoch:
            self._stream.close()
            self._stream = RecordStream(self._table, plan, left_over + batch * self.batch_size)

    def _plan(self, epoch):
        return EpochPlan(self._table, self._buffer_size, (self.seed, epoch), self.rank, self.world_size, self._shuffle)

    def _take_stream(self, plan):
        """Begin at the beginning of self.epoch; that may be what is being read already."""
        epoch, ahead = self._next or (None, None)
        self._next = None if epoch == self.epoch else self._next
        self._close_streams()
        self._stream = ahead if epoch == self.epoch else RecordStream(self._table, plan)

    def _read_ahead(self):
        """Begin to read the next epoch when this one is read."""
        if self._next is None and self._stream.is_read:
            self._next = self.epoch + 1, RecordStream(self._table, self._plan(self.epoch + 1))

    def _keep_spares(self, left_over):
        """The stream begins with what the batches leave over, and the first images of the batches come a second time
        if that is not enough.
        """
        again = min(self._corrupt.limit, MAX_SPARES, self.batches_per_epoch * self.batch_size)
        rows = self._stream.take(left_over + again)
        self._spare_images = [(bytes(window.payload(row)), window.source(row), window.name(row))
                              for window, row in rows]
        self._stream.put_back(rows[left_over:])

    def _spare(self, number):
        return self._spare_images[number % len(self._spare_images)]

    def _can_begin(self):
        return len(self._decoder) == 0 or self._stream.ready(self.batch_size)

    def _records(self, batch):
        rows = self._stream.take(self.batch_size)
        self._read_ahead()
        return StreamedRecords(rows)

    def _look_at(self, labels):
        self._meter.add(labels.asnumpy())
        if self._taken == self.batches_per_epoch:
            found = self._meter.result()
            log.info('order of the first epoch: %.2f %% of neighbouring images have the same label (%.2f %% by chance);'
                     ' %.1f different labels among the %d images of a batch', 100 * found.repeats,
                     100 * found.by_chance, found.distinct, self.batch_size)

    def _close_streams(self):
        for stream in (self._stream, self._next and self._next[1]):
            if stream is not None:
                stream.close()
        self._stream = self._next = None

    def close(self):
        super().close()
        self._close_streams()
