"""Embeddings as shardface-embed or numpy.save writes them: embeddings.npy, and beside it labels.npy and names.txt.

n images, D embedding size. Arrays are mapped: a million rows of 512 numbers are 2 GB that need not fit in memory.
"""
import os

import numpy as np

from common.drop_noisy import load_array, unit
from common.errors import UserError

EMBEDDINGS, LABELS, NAMES = 'embeddings.npy', 'labels.npy', 'names.txt'


class EmbeddingFile:
    """rows: (n, D) floats, mapped. len() is n."""

    def __init__(self, path, flag):
        """path: an .npy, or a folder with embeddings.npy; flag: that named it. UserError."""
        self.path, self._flag = os.path.join(path, EMBEDDINGS) if os.path.isdir(path) else path, flag
        self.rows = load_array(self.path, flag, 2, 'f')
        if not self.rows.size:
            raise UserError('%s: %s holds no embeddings' % (flag, self.path))

    def __len__(self):
        return len(self.rows)

    @property
    def embedding_size(self):
        return self.rows.shape[1]

    def read(self, start, stop):
        """Rows [start, stop) -> (m, D) float32. UserError for one that is not finite."""
        return self._finite(np.array(self.rows[start:stop], np.float32), np.arange(start, stop))

    def take(self, positions):
        """The same of rows at positions (m,)."""
        return self._finite(np.array(self.rows[positions], np.float32), positions)

    def _finite(self, rows, positions):
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise UserError('%s: row %d of %s is NaN or infinite: embed that image again, with another epoch'
                            % (self._flag, positions[np.argmin(finite)], self.path))
        return rows

    def units(self, start, stop):
        """The same, divided by their lengths; a row of zeros stays one."""
        return unit(self.read(start, stop))

    def labels(self, path=None):
        """(n,) int64, of the file or of the one beside the embeddings. UserError."""
        labels = load_array(path or self._beside(LABELS), self._flag, 1, 'iu')
        self._check_count(len(labels), path or self._beside(LABELS))
        return labels.astype(np.int64)

    def names(self, path=None):
        """The names of all images, a list. UserError."""
        names = read_lines(path or self._beside(NAMES))
        self._check_count(len(names), path or self._beside(NAMES))
        return names

    def has_names(self):
        return os.path.exists(self._beside(NAMES))

    def _beside(self, name):
        return os.path.join(os.path.dirname(os.path.abspath(self.path)), name)

    def _check_count(self, count, path):
        if count != len(self):
            raise UserError('%s is of %d images, %s of %d: they do not belong together'
                            % (path, count, self.path, len(self)))


def read_lines(path):
    """The lines of a text file, a list. UserError if it cannot be read."""
    try:
        with open(path, encoding='utf-8', errors='surrogateescape', newline='\n') as stream:
            return [line.rstrip('\r\n') for line in stream]
    except OSError as error:
        raise UserError('cannot read %s: %s' % (os.path.abspath(path), error.strerror)) from None


def noise_mask(names, path, flag):
    """(n,) bool: which images a list names, so that they can be left out. UserError if it names none of them.

    A line is a name, or a number, a tab and a name; lines that begin with # are comments. A name is a path as in
    names, or its last parts: Adam_Brody_1.png and Adam_Brody/Adam_Brody_1.png are both found.
    """
    listed = {line.split('\t')[-1].strip() for line in read_lines(path) if not line.startswith('#')} - {''}
    mask = np.array([any(end in listed for end in _ends(name)) for name in names], bool)
    if listed and not mask.any():
        raise UserError('%s: none of the %d names in %s is one of the images, the first of which is %.100r'
                        % (flag, len(listed), path, names[0]))
    return mask


def _ends(name):
    """'a/b/c' -> 'a/b/c', 'b/c', 'c'"""
    yield name
    for place, letter in enumerate(name):
        if letter == '/':
            yield name[place + 1:]
