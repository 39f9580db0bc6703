"""Training images of indexed face sets: records -> batches of uint8 images and int64 labels.

The order is a function of (seed, epoch). With B images per batch and process and R processes, global batch k of an
epoch is part [k * B * R, (k + 1) * B * R) of one permutation of all images, and the process of rank r takes the
r-th piece of B of it: the processes see disjoint images, and all of them see the same number of batches. What is
left at the end (less than B * R images, others in every epoch) stands in for corrupt images.
"""
import logging

import numpy as np

from common.face_labels import images_of_large_classes
from recognition.augment import Augment
from recognition.batch_iter import ORDER, FaceBatchIter, seeded
from recognition.joined_sets import JoinedSets, check_sets
from recognition.sequential_iter import get_sequential_face_iter

log = logging.getLogger('shardface')


_OPTIONS = ('num_classes', 'seed', 'rank', 'world_size', 'shuffle', 'data_threads', 'data_rand_mirror', 'data_cutoff',
            'data_color', 'data_images_filter')
_SEQUENTIAL_OPTIONS = ('shuffle_chunk_size', 'record_reader')


def get_face_image_iter(cfg, data_shape, path_imgrec):
    """The training images that a configuration asks for: a FaceBatchIter.

    cfg: batch_size (per process), and, if it has them, num_classes, seed, rank, world_size, shuffle, data_threads,
    data_rand_mirror, data_cutoff, data_color, data_images_filter; is_shuffled_rec for a set that rec2shufrec made,
    and then shuffle_chunk_size and record_reader. data_shape: (3, H, W). path_imgrec: FOLDER/train.rec, or a list of
    them, whose classes stay apart, see common.label_table.
    """
    sequential = getattr(cfg, 'is_shuffled_rec', False)
    names = _OPTIONS + (_SEQUENTIAL_OPTIONS if sequential else ())
    options = {name.replace('data_', ''): getattr(cfg, name) for name in names if getattr(cfg, name, None) is not None}
    make = get_sequential_face_iter if sequential else FaceImageIter
    return make(path_imgrec, batch_size=cfg.batch_size, data_shape=tuple(data_shape), **options)


def epoch_order(num_images, seed, epoch):
    """Permutation of [0, num_images), int32: depends on seed and epoch only."""
    order = np.arange(num_images, dtype=np.int32)
    seeded(np.random.RandomState(), seed, epoch, ORDER).shuffle(order)
    return order


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

    def __init__(self, face_sets, positions):
        """face_sets: JoinedSets; positions: (B,)."""
        face_sets.will_need(positions)
        self._face_sets, self._positions = face_sets, positions.tolist()

    def __len__(self):
        return len(self._positions)

    def opened(self, row):
        """None: looking at many headers would read the file here, and not on the threads."""

    def payload(self, row):
        return self._face_sets.read(self._positions[row])

    def source(self, row):
        return self._face_sets.source(self._positions[row])

    def name(self, row):
        return self._face_sets.name(self._positions[row])


class FaceImageIter(FaceBatchIter):
    """Batches of one or several indexed sets."""

    def __init__(self, path_imgrec, batch_size, data_shape, num_classes=None, seed=0, rank=0, world_size=1,
                 shuffle=True, threads=None, rand_mirror=False, cutoff=0, color=0, images_filter=0):
        """path_imgrec: of the .rec, or a list. batch_size: images per batch of this process. num_classes: of all sets;
        None for what `property` or the labels say.

        rand_mirror, cutoff, color: see Augment. images_filter: classes with fewer images are left out.
        UserError before the first batch for files, index, labels or sizes that cannot work.
        """
        super().__init__(batch_size, data_shape, seed, rank, world_size, threads)
        self._shuffle = shuffle
        self.face_sets = JoinedSets([path_imgrec] if isinstance(path_imgrec, str) else path_imgrec)
        try:
            classes = check_sets(self.face_sets.face_sets, num_classes)
            self._images = self._select(images_filter, classes)
            num_samples = self.face_sets.num_images if self._images is None else len(self._images)
            counts = [face_set.num_images for face_set in self.face_sets.face_sets]
            self._start(classes, counts, num_samples, Augment(rand_mirror, color, cutoff))
        except BaseException:
            self.face_sets.close()
            raise
        self._log_summary()

    def _select(self, images_filter, classes):
        """(num_samples,) positions of the images to train on; None for all."""
        if images_filter < 2:
            return None
        return self.face_sets.select(lambda face_set, number: images_of_large_classes(
            face_set, images_filter, classes[number].label_format))

    def _log_summary(self):
        log.info('%s: %d images, %d classes, %d metadata records (%s layout); %d batches of %d per epoch, seed %d, '
                 '%d decoding threads', self.path, self.face_sets.num_images, self.num_classes,
                 self.face_sets.num_metadata, self.face_sets.layout, self.batches_per_epoch, self.batch_size,
                 self.seed, self._decoder.num_threads)

    def _begin_order(self, batch):
        self._order = None                                     # one permutation at a time
        self._order = EpochOrder(self._positions(), self.batch_size, self.rank, self.world_size)

    def _positions(self):
        if not self._shuffle:
            return np.arange(self.num_samples, dtype=np.int32) if self._images is None else self._images
        order = epoch_order(self.num_samples, self.seed, self.epoch)
        return order if self._images is None else self._images[order]

    def _records(self, batch):
        return IndexedRecords(self.face_sets, self._order.batch(batch))

    def _spare(self, number):
        position = int(self._order.spare(number))
        return self.face_sets.read(position), self.face_sets.source(position), self.face_sets.name(position)

    def _look_at(self, labels):
        if self._taken > 1:
            return
        distinct = len(np.unique(labels.asnumpy()))
        log.info('%d different labels among the %d images of the first batch', distinct, self.batch_size)
        if not self._shuffle and distinct < min(self.batch_size, self.num_classes) // 2:
            log.warning('the first batch has %d images of only %d people and shuffle is off: the records are sorted '
                        'by label, which trains badly', self.batch_size, distinct)

    def close(self):
        super().close()
        self.face_sets.close()
