"""Several face sets as one source of images, in both ways of reading; a single set is one of them."""
import bisect
import collections
import itertools
import logging
import os

import numpy as np

from common.errors import UserError
from common.face_labels import check_labels, infer_num_classes
from common.face_record import FLOAT32, class_in_range, max_classes, open_face_set, read_property
from common.label_table import SetLabels

log = logging.getLogger('shardface')


class SetClasses(collections.namedtuple('SetClasses', 'path label_format num_classes first_label')):
    """What the labels of one of the sets mean."""

    def label(self, header):
        """Label of an image record, an int. ValueError if it has none of the classes of its set."""
        return self.first_label + class_in_range(header, self.num_classes, self.label_format)


def check_sets(face_sets, num_classes):
    """List of SetClasses of opened sets. UserError if property, labels and num_classes contradict each other.

    num_classes: of all sets together; None for what their files say.
    """
    alone = len(face_sets) == 1
    checked = [_check_classes(face_set, num_classes if alone else None) for face_set in face_sets]
    counts = [count for _, count in checked]
    if num_classes and num_classes != sum(counts):
        raise UserError('num_classes is %d, but the sets have %s = %d classes: %s; leave num_classes out' % (
            num_classes, ' + '.join(map(str, counts)), sum(counts),
            ', '.join(os.path.dirname(face_set.path) for face_set in face_sets)))
    firsts = itertools.accumulate([0] + counts)
    return [SetClasses(face_set.path, *found, first) for face_set, found, first in zip(face_sets, checked, firsts)]


def _check_classes(face_set, num_classes):
    """(label_format, num_classes) of a set as property, argument and labels say."""
    folder = os.path.dirname(face_set.path)
    found = read_property(folder)
    label_format = found.label_format if found else FLOAT32
    if found and num_classes and found.num_classes != num_classes:
        raise UserError('num_classes is %d, but %s says %d' % (
            num_classes, os.path.join(folder, 'property'), found.num_classes))
    num_classes = num_classes or (found.num_classes if found else infer_num_classes(face_set, label_format))
    if num_classes > max_classes(label_format):
        raise UserError('%s: %d classes need labels of two numbers (label_format=split24 in property): float32 holds '
                        'class ids up to 2**24 only' % (face_set.path, num_classes))
    check_labels(face_set, num_classes, label_format, face_set.is_whole)
    return label_format, num_classes


def label_table(classes, counts):
    """SetLabels of the sets; classes: of check_sets, counts: images of each. Several are named in the log."""
    table = [SetLabels(os.path.dirname(one.path), one.first_label, one.num_classes, int(count))
             for one, count in zip(classes, counts)]
    for row in table if len(table) > 1 else ():
        log.info('%s: %d images, %d classes, labels %d to %d', row.folder, row.num_images, row.num_classes,
                 row.first_label, row.first_label + row.num_classes - 1)
    return table


class JoinedSets:
    """Opened indexed sets one behind the other: positions 0 ... num_images - 1 run through all of them."""

    def __init__(self, paths):
        """paths: of the .rec files. UserError as open_face_set has it."""
        self.face_sets = []
        try:
            for path in paths:
                self.face_sets.append(open_face_set(path))
        except BaseException:
            self.close()
            raise
        self._firsts = list(itertools.accumulate([0] + [face_set.num_images for face_set in self.face_sets]))
        self.num_images = self._firsts[-1]
        self.num_metadata = sum(face_set.num_metadata for face_set in self.face_sets)
        self.layout = ' and '.join(sorted({face_set.layout for face_set in self.face_sets}))

    def close(self):
        for face_set in self.face_sets:
            face_set.close()

    def source(self, position):
        """Number of the set that an image is in."""
        return bisect.bisect_right(self._firsts, position) - 1

    def read(self, position):
        """As FaceSet.read."""
        number = self.source(position)
        return self.face_sets[number].read(position - self._firsts[number])

    def name(self, position):
        """As FaceSet.name."""
        number = self.source(position)
        return self.face_sets[number].name(position - self._firsts[number])

    def will_need(self, positions):
        """As FaceSet.will_need."""
        for face_set, first, stop in zip(self.face_sets, self._firsts, self._firsts[1:]):
            mine = positions[(positions >= first) & (positions < stop)]
            if len(mine):
                face_set.will_need(mine - first)

    def select(self, choose):
        """Sorted int32 positions of the images that choose(face set, its number) picks in each."""
        return np.concatenate([first + choose(face_set, number) for number, (face_set, first)
                               in enumerate(zip(self.face_sets, self._firsts))]).astype(np.int32)


class JoinedChunks:
    """The chunks of several sets, each a ChunkTable, as one table: first those of the first set, and so on."""

    def __init__(self, tables, classes):
        """classes: SetClasses of each set."""
        self._tables, self._classes = tables, classes
        self._firsts = list(itertools.accumulate([0] + [len(table) for table in tables]))
        self.counts, self.sizes = (np.concatenate(parts) for parts in zip(*((t.counts, t.sizes) for t in tables)))

    def __len__(self):
        return self._firsts[-1]

    def shuffled(self, rng):
        """The chunks in random order, (n,). Those of each set lie evenly apart, so that every stretch of the order
        holds about the same share of each set.
        """
        places = [(rng.permutation(len(table)) + rng.rand()) / len(table) for table in self._tables]
        return np.argsort(np.concatenate(places), kind='stable')

    def source(self, chunk):
        """Number of the set that a chunk is of."""
        return bisect.bisect_right(self._firsts, chunk) - 1

    def classes(self, chunk):
        """SetClasses of the set that a chunk is of."""
        return self._classes[self.source(chunk)]

    def read(self, chunk):
        """As ChunkTable.read."""
        number = self.source(chunk)
        return self._tables[number].read(chunk - self._firsts[number])

    def path(self, chunk):
        """As ChunkTable.path."""
        number = self.source(chunk)
        return self._tables[number].path(chunk - self._firsts[number])
