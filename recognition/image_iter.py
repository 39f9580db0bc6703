"""Training images of an indexed face set: records -> batches of uint8 images and int64 labels.

The order is a function of (seed, epoch). With B images per batch and process and R processes, global batch k of an
epoch is part [k * B * R, (k + 1) * B * R) of one permutation of all images, and the process of rank r takes the
r-th piece of B of it: the processes see disjoint images, and all of them see the same number of batches. What is
left at the end (less than B * R images, others in every epoch) stands in for corrupt images.
"""
import logging
import os
import time

import numpy as np

from common.errors import UsageError, UserError
from common.face_labels import check_labels, images_of_large_classes, infer_num_classes
from common.face_record import FLOAT32, max_classes, open_face_set, read_property
from common.mxnet_loader import mx
from recognition.augment import Augment
from recognition.batch_decoder import BatchDecoder, CorruptRecords, RecordDecoder
from recognition.sequential_iter import get_sequential_face_iter

log = logging.getLogger('shardface')

BATCHES_AHEAD = 4                    # being decoded while one is used
_SEED_RANGE = 1 << 32
_ORDER, _AUGMENT = 1, 2              # streams of random numbers


def get_face_image_iter(cfg, data_shape, path_imgrec):
    """The training images that a configuration asks for.

    cfg: batch_size (per process), and, if it has them, num_classes, seed, rank, world_size, shuffle, data_threads,
    data_rand_mirror, data_cutoff, data_color, data_images_filter, is_shuffled_rec. data_shape: (3, H, W).
    """
    names = ('num_classes', 'seed', 'rank', 'world_size', 'shuffle', 'data_threads', 'data_rand_mirror',
             'data_cutoff', 'data_color', 'data_images_filter')
    options = {name.replace('data_', ''): getattr(cfg, name) for name in names if getattr(cfg, name, None) is not None}
    make = get_sequential_face_iter if getattr(cfg, 'is_shuffled_rec', False) else FaceImageIter
    return make(path_imgrec, batch_size=cfg.batch_size, data_shape=tuple(data_shape), **options)


def epoch_order(num_images, seed, epoch):
    """Permutation of [0, num_images), int32: depends on seed and epoch only."""
    order = np.arange(num_images, dtype=np.int32)
    seeded(np.random.RandomState(), seed, epoch, _ORDER).shuffle(order)
    return order


def seeded(rng, *key):
    """Begin the stream of random numbers that belongs to some whole numbers. (A new RandomState costs 0.2 ms.)"""
    rng.seed([number % _SEED_RANGE for number in key])
    return rng


class EpochOrder:
    """Which images this process sees in an epoch, batch by batch, and which stand in for corrupt ones."""

    def __init__(self, order, batch_size, rank, world_size):
        """order: (n,) positions of the whole epoch, of all processes."""
        self._order, self._batch_size, self._rank, self._world_size = order, batch_size, rank, world_size
        self.batches = len(order) // (batch_size * world_size)

    def batch(self, number):
        """(B,) positions of batch `number` of this process."""
        start = (number * self._world_size + self._rank) * self._batch_size
        return self._order[start:start + self._batch_size]

    def spare(self, number):
        """Position of the image that stands in for the `number`-th corrupt one.

        First this process's part of what the batches leave over; after that, images of the epoch's batches, from
        the beginning, come a second time.
        """
        used = self.batches * self._batch_size * self._world_size
        left = self._order[used + self._rank::self._world_size]
        if number < len(left):
            return left[number]
        return self._order[(self._rank + (number - len(left)) * self._world_size) % used]


class IndexedRecords:
    """The records of one batch, for BatchDecoder."""

    def __init__(self, face_set, positions):
        self._face_set, self._positions = face_set, positions
        face_set.will_need(positions)

    def __len__(self):
        return len(self._positions)

    def payload(self, row):
        return self._face_set.read(self._positions[row])

    def name(self, row):
        return self._face_set.name(self._positions[row])


class FaceImageIter(mx.io.DataIter):
    """Batches of an indexed set: data (B, 3, H, W) uint8, RGB; softmax_label (B,) int64.

    Every epoch has batches_per_epoch batches, floor(images / (B * world_size)). next() raises StopIteration at the
    epoch's end; reset() then begins the next epoch.
    """

    def __init__(self, path_imgrec, batch_size, data_shape, num_classes=None, seed=0, rank=0, world_size=1,
                 shuffle=True, threads=None, rand_mirror=False, cutoff=0, color=0, images_filter=0):
        """batch_size: images per batch of this process. num_classes: None for what `property` or the labels say.

        rand_mirror, cutoff, color: see Augment. images_filter: classes with fewer images are left out.
        UserError before the first batch for files, index, labels or sizes that cannot work.
        """
        super().__init__(batch_size)
        data_shape = tuple(data_shape)
        _check_arguments(batch_size, data_shape, rank, world_size, threads)
        self.seed, self.epoch, self.rank, self.world_size, self._shuffle = seed, 0, rank, world_size, shuffle
        self.wait_seconds = 0.0
        self.provide_data = [mx.io.DataDesc('data', (batch_size,) + data_shape, 'uint8')]
        self.provide_label = [mx.io.DataDesc('softmax_label', (batch_size,), 'int64')]
        self.face_set = open_face_set(path_imgrec)
        try:
            self.label_format, self.num_classes = _check_classes(self.face_set, num_classes)
            self._images = self._select(images_filter)
            self.batches_per_epoch = self.num_samples // (batch_size * world_size)
            self._check_batch_size()
        except BaseException:
            self.face_set.close()
            raise
        self._rng = np.random.RandomState()
        self._augment = Augment(rand_mirror, color, cutoff)
        self._corrupt = CorruptRecords(self.batches_per_epoch * batch_size)
        decoder = RecordDecoder(data_shape[1:], self.num_classes, self.label_format, self._augment)
        self._decoder = BatchDecoder(decoder, self._corrupt, threads)
        self._begin_epoch()
        self._log_summary()

    def _select(self, images_filter):
        """(num_samples,) positions of the images to train on; None for all."""
        if images_filter < 2:
            return None
        return images_of_large_classes(self.face_set, images_filter, self.label_format)

    @property
    def num_samples(self):
        """Images that an epoch is made of, of all processes together."""
        return self.face_set.num_images if self._images is None else len(self._images)

    def _check_batch_size(self):
        if self.batches_per_epoch == 0:
            raise UserError('%d images < global batch %d (%d per process x %d processes) in %s: lower per_batch_size'
                            % (self.num_samples, self.batch_size * self.world_size, self.batch_size,
                               self.world_size, self.face_set.path))

    def _log_summary(self):
        log.info('%s: %d images, %d classes, %d metadata records (%s layout); %d batches of %d per epoch, seed %d, '
                 '%d decoding threads', self.face_set.path, self.face_set.num_images, self.num_classes,
                 self.face_set.num_metadata, self.face_set.layout, self.batches_per_epoch, self.batch_size,
                 self.seed, self._decoder.num_threads)

    def _begin_epoch(self, batch=0, spares=0):
        self._decoder.drop()
        self._order = None                                     # one permutation at a time
        self._order = EpochOrder(self._positions(), self.batch_size, self.rank, self.world_size)
        self._corrupt.begin_epoch()
        self._taken = self._begun = batch                      # batches of this epoch
        self._spares = spares                                  # images of this epoch that stood in for corrupt ones

    def _positions(self):
        if not self._shuffle:
            return np.arange(self.num_samples, dtype=np.int32) if self._images is None else self._images
        order = epoch_order(self.num_samples, self.seed, self.epoch)
        return order if self._images is None else self._images[order]

    def reset(self):
        """Begin the next epoch; nothing happens if no batch of this one was taken yet."""
        if self._taken:
            self.epoch += 1
            self._begin_epoch()

    def state(self):
        """Where the iterator stands, for restore(): whole numbers in a dict."""
        return {'epoch': self.epoch, 'batch': self._taken, 'spares': self._spares}

    def restore(self, state):
        """Continue where another iterator with the same arguments was when it gave this state()."""
        self.epoch = state['epoch']
        self._begin_epoch(state['batch'], state['spares'])

    def next(self):
        """DataBatch(data=[(B, 3, H, W) uint8], label=[(B,) int64]); what went wrong in a thread is raised here."""
        if self._taken == self.batches_per_epoch:
            raise StopIteration
        self._begin_batches()
        start = time.perf_counter()
        images, labels = self._decoder.take(self._next_spare)
        self.wait_seconds += time.perf_counter() - start
        self._taken += 1
        if self._taken == 1 and self.epoch == 0:
            self._check_mixture(labels.asnumpy())
        self._begin_batches()
        return mx.io.DataBatch(data=[images], label=[labels], pad=0)

    def _begin_batches(self):
        """Keep the threads busy."""
        while len(self._decoder) < BATCHES_AHEAD and self._begun < self.batches_per_epoch:
            rows = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
            rng = seeded(self._rng, self.seed, self.epoch, _AUGMENT, self._begun)
            draws = self._augment.draw(rng, self.batch_size * self.world_size)[rows]
            self._decoder.begin(IndexedRecords(self.face_set, self._order.batch(self._begun)), draws)
            self._begun += 1

    def _next_spare(self):
        position = self._order.spare(self._spares)
        self._spares += 1
        return self.face_set.read(position), self.face_set.name(position)

    def _check_mixture(self, labels):
        distinct = len(np.unique(labels))
        log.info('%d different labels among the %d images of the first batch', distinct, self.batch_size)
        if not self._shuffle and distinct < min(self.batch_size, self.num_classes) // 2:
            log.warning('the first batch has %d images of only %d people and shuffle is off: the records are sorted '
                        'by label, which trains badly', self.batch_size, distinct)

    def close(self):
        """End the threads and give up the file."""
        self._decoder.close()
        self.face_set.close()


def _check_arguments(batch_size, data_shape, rank, world_size, threads):
    if len(data_shape) != 3 or data_shape[0] != 3 or min(data_shape) < 1:
        raise UsageError('image_shape %s: (3, height, width) is needed' % (data_shape,))
    if batch_size < 1:
        raise UsageError('batch_size %s: at least one image is needed' % batch_size)
    if not 0 <= rank < world_size:
        raise UsageError('rank %s of %s processes does not exist' % (rank, world_size))
    if threads is not None and threads < 1:
        raise UsageError('data_threads %s: at least one thread is needed' % threads)


def _check_classes(face_set, num_classes):
    """(label_format, num_classes) as property, argument and labels say. UserError if they contradict each other."""
    found = read_property(os.path.dirname(face_set.path))
    label_format = found.label_format if found else FLOAT32
    if found and num_classes and found.num_classes != num_classes:
        raise UserError('num_classes is %d, but %s says %d' % (
            num_classes, os.path.join(os.path.dirname(face_set.path), 'property'), found.num_classes))
    num_classes = num_classes or (found.num_classes if found else infer_num_classes(face_set, label_format))
    if num_classes > max_classes(label_format):
        raise UserError('%s: %d classes need labels of two numbers (label_format=split24 in property): float32 holds '
                        'class ids up to 2**24 only' % (face_set.path, num_classes))
    check_labels(face_set, num_classes, label_format)
    return label_format, num_classes
