"""Labels of a whole face set at once: how many classes there are, and whether every label is one of them."""
import logging

import numpy as np

from common.class_ids import read_class_ids
from common.errors import UserError
from common.face_record import FLOAT32, class_id, class_in_range, max_classes
from common.images import CorruptImage, decode_bgr
from common.recordio import WHOLE, unpack

log = logging.getLogger('shardface')

CHECKED_IN_FULL = 200000             # images up to which all labels are read before training (1.4 GB of file)
SAMPLES = 1024                       # read in a larger set, evenly spread; the others are checked when decoded
_CHUNK = 1 << 16


def read_labels(face_set, positions, label_format=FLOAT32):
    """Class ids of the images at `positions`, int64 (n,); -1 where there is no whole number of 0 or more."""
    record_file, offsets = face_set.record_file, face_set.offsets[positions]
    labels = read_class_ids(record_file, offsets, label_format)
    for row in np.flatnonzero(record_file.words(offsets, 1) >> 29 != WHOLE):
        labels[row] = _read_label(face_set, positions[row], label_format)
    return labels


def infer_num_classes(face_set, label_format=FLOAT32):
    """Largest label + 1; reads the label of every image. UserError names a record whose label is not a class."""
    log.info('%s: the number of classes is not stated, reading %d labels to find the largest',
             face_set.path, face_set.num_images)
    largest, limit = -1, max_classes(label_format)
    for positions, labels in _walk(face_set, np.arange(face_set.num_images), label_format):
        good = (labels >= 0) & (labels < limit)
        for position in positions[~good]:
            _explain(face_set, position, limit, label_format)
        largest = max(largest, int(labels[good].max(initial=-1)))
    if largest < 0:
        raise UserError('%s: no image has a readable label' % face_set.path)
    log.info('%s: largest label %d, so %d classes', face_set.path, largest, largest + 1)
    return largest + 1


def check_labels(face_set, num_classes, label_format=FLOAT32, is_whole=True):
    """UserError for the first record whose label is not in [0, num_classes); a warning for classes without images.

    Sets of more than CHECKED_IN_FULL images are sampled: what is missed here is met when it is decoded.
    is_whole: False if face_set knows some of its images only.
    """
    in_full = is_whole and face_set.num_images <= CHECKED_IN_FULL
    count = face_set.num_images
    sample = np.arange(count) if in_full else np.linspace(0, count - 1, SAMPLES).astype(np.int64)
    has_images = np.zeros(num_classes, bool)
    for positions, labels in _walk(face_set, sample, label_format):
        good = (labels >= 0) & (labels < num_classes)
        for position in positions[~good]:
            _explain(face_set, position, num_classes, label_format)
        has_images[labels[good]] = True
    if in_full and not has_images.all():
        log.warning('%s: %d of %d classes have no image', face_set.path, num_classes - has_images.sum(), num_classes)


def images_of_large_classes(face_set, min_images, label_format=FLOAT32):
    """Positions, sorted int32, of the images whose class has min_images images or more; reads all labels."""
    labels = np.concatenate([labels for _, labels in
                             _walk(face_set, np.arange(face_set.num_images), label_format)])
    classes, class_of_image, counts = np.unique(labels, return_inverse=True, return_counts=True)
    kept = (counts >= min_images) & (classes >= 0)
    positions = np.flatnonzero(kept[class_of_image]).astype(np.int32)
    log.info('%s: %d of %d images belong to the %d of %d classes that have at least %d images; the others are left out',
             face_set.path, len(positions), len(labels), kept.sum(), (classes >= 0).sum(), min_images)
    return positions


def _walk(face_set, positions, label_format):
    """Yield (positions, labels) in pieces."""
    for start in range(0, len(positions), _CHUNK):
        part = positions[start:start + _CHUNK]
        yield part, read_labels(face_set, part, label_format)


def _read_label(face_set, position, label_format):
    try:
        return class_id(unpack(face_set.read(position))[0], label_format)
    except ValueError:
        return -1


def _explain(face_set, position, num_classes, label_format):
    """UserError if the label is wrong; nothing if the record is damaged: that is counted when it is decoded."""
    try:
        header, encoded = unpack(face_set.read(position))
        decode_bgr(encoded, (1, 1))
    except (ValueError, CorruptImage):
        return
    try:
        class_in_range(header, num_classes, label_format)
    except ValueError as error:
        raise UserError('%s (%s)' % (error, face_set.name(position))) from None
