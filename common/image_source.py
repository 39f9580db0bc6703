"""Images to be embedded, with their keys and labels: a face set of any layout, or a folder of photos."""
import os

import numpy as np

from common.any_set import open_any_set, record_path
from common.embedding_files import read_lines
from common.errors import UserError
from common.face_labels import read_labels
from common.face_record import FLOAT32, read_property
from common.images import CorruptImage, decode_rgb
from common.photo_files import ENDINGS, is_photo, list_identities, natural_key, printable
from common.recordio import unpack

UNKNOWN = -1                         # the label of an image that has none


class Source:
    """Images by position; encoded(position) gives the bytes of a file."""

    def decode(self, position, size, out):
        """Fill out uint8 (3, h, w). CorruptImage."""
        decode_rgb(self.encoded(position), size, out=out)


class SetSource(Source):
    """The images of a face set, in the order of their keys. names: None, classes have none either."""

    names = classes = None

    def __init__(self, path):
        path = record_path(path)
        found = read_property(os.path.dirname(path))
        self._label_format = found.label_format if found else FLOAT32
        self._set = open_any_set(path)
        self.keys, self.close = self._set.keys, self._set.close

    def __len__(self):
        return self._set.num_images

    def labels(self, positions):
        return read_labels(self._set, positions, self._label_format)

    def name(self, position):
        return self._set.name(position)

    def encoded(self, position):
        """CorruptImage if the record holds none."""
        try:
            return unpack(self._set.read(position))[1]
        except ValueError as error:
            raise CorruptImage(str(error)) from None


class FileSource(Source):
    """Files of a folder by their names below it, in the order of the names, numbered from 0."""

    def __init__(self, folder, names):
        self._folder, self.names = folder, names

    def __len__(self):
        return len(self.names)

    def path(self, position):
        return os.path.join(self._folder, self.names[position])

    def name(self, position):
        return printable(self.path(position))

    def encoded(self, position):
        """CorruptImage if the file cannot be read."""
        try:
            with open(self.path(position), 'rb') as stream:
                return stream.read()
        except OSError as error:
            raise CorruptImage(error.strerror) from None

    def close(self):
        """Nothing is open."""


class FolderSource(FileSource):
    """Photos of a folder in natural order, numbered from 0: FOLDER/IDENTITY/PHOTO.jpg, or FOLDER/PHOTO.jpg.

    Identities have the numbers that rec_builder gives them; photos directly in the folder have the label UNKNOWN.
    names: of each photo, below the folder; classes: names of the identities, None if there are none.
    """

    def __init__(self, folder):
        names = sorted(filter(is_photo, os.listdir(folder)), key=natural_key)
        super().__init__(folder, [name for name in names if not name.startswith('.')])
        self.classes = None
        self._labels = np.full(len(self.names), UNKNOWN, np.int64)
        if not self.names:
            found = list_identities(folder)
            self.classes = list(found)
            self.names = [os.path.relpath(path, folder) for paths in found.values() for path in paths]
            self._labels = np.repeat(np.arange(len(found)), [len(paths) for paths in found.values()])
        wrong = [name for name in self.names if any(sign in name for sign in '\t\r\n')]
        if wrong:
            raise UserError('%r: a tab or a line break in the name of a photo; rename it' % wrong[0])
        self.keys = np.arange(len(self.names))

    def labels(self, positions):
        return self._labels[positions]


class ListSource(FileSource):
    """The photos of a folder that a text file names, a line each, in its order. Their labels are UNKNOWN."""

    classes = None

    def __init__(self, folder, path):
        names = [name for name in read_lines(path) if name]
        if not names or any('\t' in name or '\0' in name for name in names):
            raise UserError('--list %s: names of photos below %s are expected, a line each' % (path, folder))
        super().__init__(folder, names)
        self.keys = np.arange(len(names))

    def labels(self, positions):
        return np.full(len(positions), UNKNOWN, np.int64)


def open_source(path, list_path=None):
    """SetSource of a .rec, or of a folder that holds one; else FolderSource, or ListSource of a folder and a list.

    UserError if there is none of them.
    """
    if list_path:
        if not os.path.isdir(path):
            raise UserError('--input %s is no folder, so --list names nothing in it' % os.path.abspath(path))
        return ListSource(os.path.abspath(path), list_path)
    if os.path.isdir(path) and not any(name.endswith('.rec') for name in os.listdir(path)):
        return FolderSource(os.path.abspath(path))
    if not os.path.exists(path):
        raise UserError('--input %s is not there: a folder of %s files, or a set, is expected'
                        % (os.path.abspath(path), ' '.join(ENDINGS)))
    return SetSource(path)


def decoded_batches(source, size, batch_size, pool):
    """Yield (positions (n,), images uint8 (batch_size, 3, h, w), reasons): the images of a source, n in each batch.

    reasons: None, or why an image cannot be used, of each; such rows, and those behind the last, are black.
    pool: of threads, which decode.
    """
    for start in range(0, len(source), batch_size):
        positions = np.arange(start, min(start + batch_size, len(source)))
        images = np.zeros((batch_size, 3) + tuple(size), np.uint8)
        yield positions, images, list(pool.map(lambda row, out: _decode(source, row, size, out),
                                               positions.tolist(), images))


def _decode(source, position, size, out):
    try:
        source.decode(position, size, out)
    except CorruptImage as error:
        return str(error)
    return None
