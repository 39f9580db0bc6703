"""Writing an indexed face set in the identity layout (see face_record), front to back."""
import os

from common.face_record import Property, pack_class_id, pack_metadata, write_property
from common.recordio import RecordWriter


def write_identity_set(folder, images, counts, size, extra=None):
    """Write train.rec, train.idx and property into a folder that exists.

    images: iterable of encoded images, class after class; counts: images of each class; size (h, w) and extra (see
    Property) go into property. Keys: 0 the header, then the images from 1, then one identity record per class.
    ValueError if there are more or fewer images than counted.
    """
    images, key = iter(images), 1
    stop = 1 + sum(counts)
    paths = [os.path.join(folder, name) for name in ('train.rec', 'train.idx')]
    with RecordWriter(*paths) as writer:
        writer.write(0, pack_metadata(stop, stop + len(counts)))
        for number, count in enumerate(counts):
            for _ in range(count):
                writer.write(key, pack_class_id(number, _next(images, stop - 1), key))
                key += 1
        if next(images, None) is not None:
            raise ValueError('more images than the %d counted' % (stop - 1))
        start = 1
        for number, count in enumerate(counts):
            writer.write(stop + number, pack_metadata(start, start + count))
            start += count
    write_property(folder, Property(len(counts), *size, extra=extra))


def _next(images, counted):
    image = next(images, None)
    if image is None:
        raise ValueError('fewer images than the %d counted' % counted)
    return image
