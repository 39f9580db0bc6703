"""What readers of training images have in common: batches, epochs, resuming, time spent waiting."""
import logging
import time

import numpy as np

from common.errors import UsageError, UserError
from common.mxnet_loader import mx
from recognition.batch_decoder import BatchDecoder, CorruptRecords, RecordDecoder
from recognition.joined_sets import label_table

log = logging.getLogger('shardface')

BATCHES_AHEAD = 4                    # being decoded while one is used
ORDER, AUGMENT, WINDOW = 1, 2, 3     # streams of random numbers
_SEED_RANGE = 1 << 32


def seeded(rng, *key):
    """Begin the stream of random numbers that belongs to some whole numbers. (A new RandomState costs 0.2 ms.)"""
    rng.seed([number % _SEED_RANGE for number in key])
    return rng


class FaceBatchIter(mx.io.DataIter):
    """Batches of images: data (B, 3, H, W) uint8, RGB; softmax_label (B,) int64.

    Every epoch has batches_per_epoch batches, floor(num_samples / (B * world_size)). next() raises StopIteration at
    the epoch's end; reset() then begins the next epoch. A reader calls _start() when it knows its set, and has
        _begin_order(batch)   put the images of epoch self.epoch in order; `batch` is the first that is asked for
        _records(batch)       records of that batch for BatchDecoder; asked for one after the other
        _spare(number)        (payload, set, name) of the image that stands in for the number-th corrupt one
    """

    def __init__(self, batch_size, data_shape, seed, rank, world_size, threads):
        data_shape = tuple(data_shape)
        super().__init__(batch_size)
        _check_arguments(batch_size, data_shape, rank, world_size, threads)
        self.seed, self.epoch, self.rank, self.world_size, self._threads = seed, 0, rank, world_size, threads
        self.wait_seconds = 0.0
        self.provide_data = [mx.io.DataDesc('data', (batch_size,) + data_shape, 'uint8')]
        self.provide_label = [mx.io.DataDesc('softmax_label', (batch_size,), 'int64')]
        self._rng = np.random.RandomState()

    def _start(self, classes, counts, num_samples, augment):
        """Begin the first epoch. classes: of check_sets; counts: images of each set; num_samples: images of an
        epoch, of all processes together. UserError if they do not make one batch.
        """
        self.path = ', '.join(one.path for one in classes)
        self.label_table = label_table(classes, counts)
        self.num_classes = sum(one.num_classes for one in classes)
        self.num_samples, global_batch = num_samples, self.batch_size * self.world_size
        self.batches_per_epoch = num_samples // global_batch
        if self.batches_per_epoch == 0:
            raise UserError('%d images < global batch %d (%d per process x %d processes) in %s: lower per_batch_size'
                            % (num_samples, global_batch, self.batch_size, self.world_size, self.path))
        self._augment = augment
        self._corrupt = CorruptRecords(self.batches_per_epoch * self.batch_size)
        decoder = RecordDecoder(self.provide_data[0].shape[2:], classes, augment)
        self._decoder = BatchDecoder(decoder, self._corrupt, self._threads)
        try:
            self._begin_epoch()
        except BaseException:
            self.close()
            raise

    def _begin_epoch(self, batch=0, spares=0):
        self._decoder.drop()
        self._begin_order(batch)
        self._corrupt.begin_epoch()
        self._taken = self._begun = batch                      # batches of this epoch
        self._spares = spares                                  # images of this epoch that stood in for corrupt ones

    def reset(self):
        """Begin the next epoch; nothing happens if no batch of this one was taken yet."""
        if self._taken:
            self.epoch += 1
            self._begin_epoch()

    def state(self):
        """Where the iterator stands, for restore(): whole numbers in a dict."""
        return {'epoch': self.epoch, 'batch': self._taken, 'spares': self._spares, 'num_samples': self.num_samples,
                'global_batch': self.batch_size * self.world_size}

    def restore(self, state):
        """Continue where another iterator with the same arguments was when it gave this state().

        With another size of the global batch: at the batch that holds the first image not seen yet, so that fewer
        images than a batch come a second time. With another number of images the epoch begins anew.
        """
        self.epoch, global_batch = state['epoch'], self.batch_size * self.world_size
        batch, spares = state['batch'] * state['global_batch'] // global_batch, state['spares']
        if state['num_samples'] != self.num_samples:
            log.warning('%d images per epoch where there were %d: epoch %d begins anew', self.num_samples,
                        state['num_samples'], self.epoch)
            batch = spares = 0
        elif state['global_batch'] != global_batch:
            log.warning('%d images per step where there were %d: the epoch goes on at its batch %d',
                        global_batch, state['global_batch'], batch)
        self._begin_epoch(min(batch, self.batches_per_epoch), spares)

    def next(self):
        """DataBatch(data=[(B, 3, H, W) uint8], label=[(B,) int64]); what went wrong in a thread is raised here."""
        if self._taken == self.batches_per_epoch:
            raise StopIteration
        start = time.perf_counter()
        self._begin_batches()
        images, labels = self._decoder.take(self._next_spare)
        self._taken += 1
        self._begin_batches()
        self.wait_seconds += time.perf_counter() - start
        if self.epoch == 0:
            self._look_at(labels)
        return mx.io.DataBatch(data=[images], label=[labels], pad=0)

    def _begin_batches(self):
        """Keep the threads busy."""
        while len(self._decoder) < BATCHES_AHEAD and self._begun < self.batches_per_epoch and self._can_begin():
            rows = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
            rng = seeded(self._rng, self.seed, self.epoch, AUGMENT, self._begun)
            draws = self._augment.draw(rng, self.batch_size * self.world_size)[rows]
            self._decoder.begin(self._records(self._begun), draws)
            self._begun += 1

    def _can_begin(self):
        """False to put off what is not urgent."""
        return True

    def _look_at(self, labels):
        """Sees the labels (MXNet array) of every batch of the first epoch."""

    def _next_spare(self):
        self._spares += 1
        return self._spare(self._spares - 1)

    def close(self):
        """End the threads and give up the files."""
        self._decoder.close()


def _check_arguments(batch_size, data_shape, rank, world_size, threads):
    if len(data_shape) != 3 or data_shape[0] != 3 or min(data_shape) < 1:
        raise UsageError('image_shape %s: (3, height, width) is needed' % (data_shape,))
    if batch_size < 1:
        raise UsageError('batch_size %s: at least one image is needed' % batch_size)
    if not 0 <= rank < world_size:
        raise UsageError('rank %s of %s processes does not exist' % (rank, world_size))
    if threads is not None and threads < 1:
        raise UsageError('data_threads %s: at least one thread is needed' % threads)
