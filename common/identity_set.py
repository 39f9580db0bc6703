"""Writing an indexed face set in the identity layout (see face_record), front to back."""
import os

from common.face_record import FLOAT32, Property, pack_class_id, pack_metadata, write_property
from common.recordio import HEAD_SIZE, RecordWriter


class IdentitySetWriter:
    """Writes train.rec, train.idx and property into a folder, which is a temporary one: the header comes last.

    Keys: 0 the header, then the images from 1, then one identity record per class.
    A context manager: finish() inside it, or nothing is left.
    """

    def __init__(self, folder, num_classes, label_format=FLOAT32):
        self.counts = [0] * num_classes
        self._folder, self._label_format, self._last, self._key = folder, label_format, 0, 1
        self._path = os.path.join(folder, 'train.rec')
        self._records = RecordWriter(self._path, os.path.join(folder, 'train.idx'))
        self._records.write(0, pack_metadata(0, 0))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._records.abort()                                  # nothing is left to remove after finish()

    def add(self, number, image):
        """Append an encoded image of class `number`; classes in order. ValueError if one comes too late."""
        if number < self._last:
            raise ValueError('image of class %d after class %d' % (number, self._last))
        self._records.write(self._key, pack_class_id(number, image, self._key, self._label_format))
        self._last, self._key = number, self._key + 1
        self.counts[number] += 1

    def finish(self, size, extra=None):
        """Write what follows the images, then the header; size (h, w) and extra (see Property) go into property."""
        start, num_classes = 1, len(self.counts)
        for number, count in enumerate(self.counts):
            self._records.write(self._key + number, pack_metadata(start, start + count))
            start += count
        self._records.commit()
        with open(self._path, 'r+b') as stream:
            stream.seek(HEAD_SIZE)
            stream.write(pack_metadata(start, start + num_classes))
        write_property(self._folder, Property(num_classes, *size, extra=extra))


def write_identity_set(folder, images, counts, size, extra=None):
    """Write a set of a known number of images into a folder, see IdentitySetWriter.

    images: iterable of encoded images, class after class; counts: images of each class.
    ValueError if there are more or fewer images than counted.
    """
    images = iter(images)
    with IdentitySetWriter(folder, len(counts)) as writer:
        for number, count in enumerate(counts):
            for _ in range(count):
                image = next(images, None)
                if image is None:
                    raise ValueError('fewer images than the %d counted' % sum(counts))
                writer.add(number, image)
        if next(images, None) is not None:
            raise ValueError('more images than the %d counted' % sum(counts))
        writer.finish(size, extra)
