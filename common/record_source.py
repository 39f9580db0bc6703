"""Face sets as a source of images: any layout, read front to back, no index needed; unusable records are left out."""
import functools
import logging
import os

import numpy as np

from common.ahead import ahead
from common.class_ids import read_class_ids
from common.errors import UserError
from common.face_record import FLOAT32, class_id, index_path, read_property
from common.recordio import HEAD_SIZE, LABEL_SIZE, RecordFile, padded, unpack
from common.sequential_set import find_parts
from common.shuffle import ENTRY, Block

log = logging.getLogger('shardface')

DROP, REFUSE = 'drop', 'refuse'
BATCH_BYTES = 4 << 20
MAX_CLASS = 1 << 31                  # beyond it a label is taken for damage


class Source:
    """One input set, opened for one pass. After the pass: num_images, num_metadata, num_classes, labels, dropped."""

    def __init__(self, path):
        """path: folder with train.rec or its parts, or a .rec. UserError if there is none."""
        path = os.path.realpath(path)
        self.paths = find_parts(path if path.endswith('.rec') else os.path.join(path, 'train.rec'))
        self.folder = os.path.dirname(self.paths[0])
        self.size = sum(os.path.getsize(path) for path in self.paths)
        self.property = read_property(self.folder)
        self.label_format = self.property.label_format if self.property else FLOAT32
        self._limit = self.property.num_classes if self.property else MAX_CLASS
        self.labels = Distinct()
        self.num_images = self.num_metadata = 0
        self.dropped = []                                      # (path, offset, reason)

    @property
    def num_classes(self):
        """What property says, else the largest label + 1."""
        return self.property.num_classes if self.property else self.labels.largest + 1

    def image_size(self):
        """(h, w) as property says, else of the first image; None if there is none among the first records."""
        if self.property:
            return self.property.height, self.property.width
        from common.preparation import first_image_size  # OpenCV takes long to import
        return first_image_size(self.paths[0])

    def batches(self, policy, prepare=None):
        """Yield (block, bytes read): a Block of images; metadata left out. Its memory is that of the file.

        policy: what to do with an unusable record, DROP, REFUSE (UserError), or None: no image is dropped, a label
        that is no class is refused. prepare: see preparation.Preparation.
        """
        for path in self.paths:
            with RecordFile(path) as record_file:
                for starts, end, is_odd in ahead(find_records(record_file)):
                    block, offsets = self._usable(record_file, starts, end, is_odd, policy)
                    if prepare:
                        block = self._prepared(prepare, block, offsets, path, policy)
                    self.num_images += len(block)
                    self.labels.add(block.entries['number'])
                    yield block, end - starts[0]

    def _usable(self, record_file, starts, end, is_odd, policy):
        """Block of the usable ones among the records of a range, and the offsets of their records."""
        first, flag = int(starts[0]), record_file.words(starts, 2).astype(np.int64)
        entries, odd = np.zeros(len(starts), ENTRY), {}
        entries['number'] = read_class_ids(record_file, starts, self.label_format)
        entries['id'] = record_file.words(starts, 4) | record_file.words(starts, 5).astype(np.uint64) << np.uint64(32)
        entries['start'] = starts - first + HEAD_SIZE + LABEL_SIZE + 4 * flag
        size = record_file.words(starts, 1).astype(np.int64) - LABEL_SIZE - 4 * flag
        is_metadata = ~is_odd & (flag == 2) & (size == 0)
        is_usable = ~is_odd & (size > 0) & (entries['number'] >= 0) & (entries['number'] < self._limit)
        entries['size'][is_usable] = size[is_usable]
        for row in np.flatnonzero(~is_usable & ~is_metadata):  # few: of several parts, or something is wrong with them
            parsed = self._parse(record_file.path, int(starts[row]), record_file.read(int(starts[row])), policy)
            if parsed:
                is_usable[row] = entries['odd'][row] = True
                entries['number'][row], entries['id'][row], odd[row] = parsed
        self.num_metadata += int(is_metadata.sum())
        block = Block(record_file.range(first, end), entries, functools.partial(record_file.forget, first, end - first))
        block, kept = block.only(is_usable), np.flatnonzero(is_usable)
        if odd:
            block = block.copied([odd.get(row, image) for row, image in zip(kept.tolist(), block.images())])
        return block, starts[kept]

    def _prepared(self, prepare, block, offsets, path, policy):
        """Block of what prepare makes of the images of a block."""
        before = block.images()
        images = prepare(before)
        for offset, image in zip(offsets.tolist(), images):
            if isinstance(image, Exception):
                self._drop(path, offset, image, policy == DROP)
        kept = [row for row, image in enumerate(images) if not isinstance(image, Exception)]
        block, images = block.only(kept), [images[row] for row in kept]
        changed = [image is not before[row] for row, image in zip(kept, images)]
        block.entries['odd'] |= np.array(changed, '<u4')
        return block.copied(images) if any(changed) else block

    def _parse(self, path, offset, payload, policy):
        """(class, id, image), or None for metadata and for what is dropped."""
        try:
            header, image = unpack(payload)
            if header.flag == 2 and len(image) == 0:
                self.num_metadata += 1
                return None
            if len(image) == 0:
                self._drop(path, offset, 'no image in the record', policy != REFUSE)
                return None
            number = class_id(header, self.label_format)
            if number >= self._limit:
                raise ValueError('label %d outside [0, %d)' % (number, self._limit))
            return number, header.id, image
        except ValueError as error:
            self._drop(path, offset, error, policy == DROP)
            return None

    def _drop(self, path, offset, reason, allowed):
        if not allowed:
            raise UserError('%s: record at offset %d: %s; repair the set, or leave such records out with '
                            '--check-images drop' % (path, offset, reason))
        self.dropped.append((path, offset, str(reason)))


def find_records(record_file):
    """Yield (starts, end, is_odd) of some MB after the other, front to back, every byte of which is read.

    starts: offsets of the records, int64 (n,); end: where the last one ends; is_odd: bool (n,), the record has several
    parts, or holds the magic number at a multiple of 4 all the same. UserError for a damaged or truncated file.
    """
    start = 0
    while start < record_file.size:
        end = min(start + BATCH_BYTES, record_file.size)
        record_file.will_need(end, 2 * BATCH_BYTES)
        starts = record_file.find_magic(start, end)
        if end < record_file.size and len(starts):             # the last one, if it is one, goes on behind the end
            starts, end = starts[:-1], int(starts[-1])
        stops = starts + HEAD_SIZE + record_file.words(starts, 1)      # beyond all bounds where there are several parts
        if len(starts) and starts[0] == start and stops[-1] <= record_file.size \
                and (padded(stops) == np.append(starts[1:], padded(end))).all():
            is_odd = np.zeros(len(starts), bool)
        else:
            starts, end, is_odd = _walk(record_file, start, start + BATCH_BYTES)
        yield starts, end, is_odd
        start = padded(end)


def _walk(record_file, start, limit):
    """As find_records, of the records that begin in a range; from each record to the next one."""
    starts = []
    for offset, _ in record_file.walk(start):
        if offset >= limit:
            break
        starts.append(offset)
    end = record_file.end_of(starts[-1])
    bounds = np.array(starts + [end])
    return bounds[:-1], end, np.diff(np.searchsorted(record_file.find_magic(start, end), bounds)) > 1


class Distinct:
    """Which class ids occurred."""

    def __init__(self):
        self._known, self._new, self._count = np.empty(0, np.int64), [], 0

    def add(self, numbers):
        self._new.append(np.array(numbers, np.int64))
        self._count += len(numbers)
        if self._count > max(1 << 20, len(self._known)):
            self.values()

    def values(self):
        """Sorted int64 array of them."""
        if self._new:
            self._known = np.unique(np.concatenate([self._known] + self._new))
            self._new, self._count = [], 0
        return self._known

    @property
    def largest(self):
        """-1 if there are none."""
        return int(self.values()[-1]) if len(self.values()) else -1


def warn_about_index(source):
    """Warn if there is an index that lists another number of records than were found; after the pass."""
    path, found = index_path(source.paths[0]), source.num_images + source.num_metadata + len(source.dropped)
    if len(source.paths) > 1 or not os.path.isfile(path):
        return
    with open(path, 'rb') as stream:
        listed = sum(piece.count(b'\t') for piece in iter(functools.partial(stream.read, 1 << 20), b''))
    if listed != found:
        log.warning('%s lists %d records, %s holds %d: the index is not used, all records were taken',
                    path, listed, os.path.basename(source.paths[0]), found)
