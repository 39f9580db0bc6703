"""Starting the classification layer from class centers that were trained before, also for other classes than theirs.

Kept classes take over center and momentum, bit for bit, whatever shards wrote them. New ones start at random, as in
a fresh training, or at the mean embedding of their images.
"""
import logging
import os
import pathlib

import numpy as np

from common.class_rows import ClassRows, saved_ranges
from common.errors import UserError
from common.progress import progress_bar
from recognition.checkpoint import check_row_shape, head_folder
from recognition.class_block import INIT_SCALE
from recognition.class_map import ClassMap, read_class_map
from recognition.pretrained import with_epoch
from recognition.state_files import MANIFEST, check_file, read_manifest
from recognition.training_state import HEAD

log = logging.getLogger('shardface')

CENTERS = 'centers'
BEFORE_TRAINING = -1                   # epoch of the pass that only looks at images


class PretrainedHead:
    """Centers on the disk, and which of them the classes of this training take. Nothing is read into memory yet."""

    def __init__(self, path, number, class_map, num_classes):
        """path: folder PREFIX-NNNN.head, or of a training state, or PREFIX, PREFIX,EPOCH; number: EPOCH if it is not
        given there. class_map: path of a file, or '' if the classes are the same. UserError.
        """
        self.folder = find_centers(path, number)
        num_saved = ClassRows(self.folder, CENTERS).num_classes
        if class_map:
            self.map = read_class_map(class_map, num_saved, num_classes)
        elif num_saved != num_classes:
            raise UserError('%s has %d classes, this training has %d: say which are which by --class-map FILE, a line '
                            'OLD NEW for each class that is kept' % (self.folder, num_saved, num_classes))
        else:
            self.map = ClassMap.same(num_classes)

    def fill(self, head):
        """Set the kept classes of this process's shards; the others stay as they are. UserError if they do not fit."""
        blocks = [block for shard in head.shards for block in shard.blocks]
        names = [name for name in (blocks[0].arrays() if blocks else []) if saved_ranges(self.folder, name)]
        for name in names:
            saved = ClassRows(self.folder, name)
            check_row_shape(self.folder, name, saved.row_shape, blocks[0].row_shape(name))
            for block in blocks:
                self._fill_block(block, name, saved)
        log.info('class centers of %s: %d classes taken, with their %s; %d of this training are new, %d there are not '
                 'used', self.folder, len(self.map.new), ', '.join(names[1:]) or 'centers alone',
                 head.num_classes - len(self.map.new),
                 ClassRows(self.folder, CENTERS).num_classes - len(np.unique(self.map.old)))

    def _fill_block(self, block, name, saved):
        for first, last in block.row_ranges(name):
            places, old = self.map.within(block.start + first, block.start + last)
            if len(places):
                rows = block.rows(name, first, last).copy()
                rows[places] = saved.take(old)
                block.set_rows(name, rows, first)


def find_centers(path, number):
    """Folder with the files of class centers. UserError if there is none, or if it is of a damaged training state."""
    folder = pathlib.Path(os.path.abspath(os.path.expanduser(path)))
    if (folder / MANIFEST).is_file():
        for name, entry in read_manifest(folder)['files'].items():
            if name.startswith(HEAD + '/'):
                check_file(folder / name, entry)
        return folder / HEAD
    if folder.is_dir() and saved_ranges(folder, CENTERS):
        return folder
    prefix, number = with_epoch(path, number)
    found = head_folder(os.path.abspath(os.path.expanduser(prefix)), number)
    if not found.is_dir():
        raise UserError('--pretrained-head %s: neither a folder with class centers, nor of a training state, nor is '
                        'there %s' % (path, found))
    return found


def start_new_centers_from_images(backbone, head, train_iter, kept):
    """Each class that is not kept starts at the mean direction of its images' embeddings, with the length of a fresh
    center; of several centers the first. Classes whose images are not in a batch of the pass stay as they are.

    kept: ClassMap, or None if all classes are new. One pass over the training set, in which every process embeds its
    own batches; the order of training is as without it. Two collectives per batch.
    """
    sums = [NewCenters(block, kept) for shard in head.shards for block in shard.blocks]
    state, collective = train_iter.state(), head.collective
    train_iter.restore(dict(state, epoch=BEFORE_TRAINING))
    with progress_bar(total=train_iter.batches_per_epoch, desc='new centers', unit='batch',
                      disable=None if collective.rank == 0 else True) as bar:
        for batch in train_iter:
            embedding = collective.allgather(backbone.forward(batch.data[0], is_train=False), 'new_centers').asnumpy()
            labels = collective.allgather(batch.label[0].asnumpy(), 'new_center_labels')
            for part in sums:
                part.add(embedding, labels)
            bar.update()
    train_iter.restore(state)
    found = [part.write() for part in sums]
    log.info('%d new classes of this process start at the mean embedding of their images, %d at random',
             sum(found), sum(len(part.classes) for part in sums) - sum(found))


class NewCenters:
    """Sums of the embeddings' directions of a block's new classes: classes (n,), places in the block; sums (n, D)."""

    def __init__(self, block, kept):
        is_new = np.ones(block.stop - block.start, bool)
        if kept is not None:
            is_new[kept.within(block.start, block.stop)[0]] = False
        self._block, self.classes = block, np.flatnonzero(is_new)
        self._sums = np.zeros((len(self.classes), block.weight.shape[1]), np.float32)

    def add(self, embedding, labels):
        """embedding (N, D), labels (N,)."""
        place = np.searchsorted(self.classes, labels - self._block.start)
        inside = place < len(self.classes)
        inside[inside] = self.classes[place[inside]] == labels[inside] - self._block.start
        np.add.at(self._sums, place[inside], directions(embedding[inside]))

    def write(self):
        """Set the centers; returns how many."""
        block, found = self._block, np.flatnonzero(self._sums.any(axis=1))
        length = INIT_SCALE * self._sums.shape[1] ** 0.5
        for first, last in block.row_ranges(CENTERS):
            here = found[(self.classes[found] >= first) & (self.classes[found] < last)]
            if len(here):
                rows = block.rows(CENTERS, first, last).copy()
                first_centers = rows if rows.ndim == 2 else rows[:, 0]
                first_centers[self.classes[here] - first] = length * directions(self._sums[here])
                block.set_rows(CENTERS, rows, first)
        return len(found)


def directions(rows):
    """Rows (n, D) of length 1; 0 for 0."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norm, out=np.zeros_like(rows), where=norm > 0)
