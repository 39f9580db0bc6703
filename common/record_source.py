"""Face sets as a source of images: any layout, read front to back, no index needed; unusable records are left out."""
import concurrent.futures
import itertools
import logging
import os

import cv2
import numpy as np

from common.errors import UserError
from common.face_record import FLOAT32, class_id, index_path, read_property
from common.images import CorruptImage, decode_bgr, image_size
from common.recordio import RecordFile, unpack
from common.sequential_set import find_parts

log = logging.getLogger('shardface')

DROP, REFUSE = 'drop', 'refuse'
BATCH_BYTES = 4 << 20
MAX_CLASS = 1 << 31                  # beyond it a label is taken for damage
JPEG_QUALITY = 95


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
        self.is_whole = True                                   # no magic number but those that begin the records
        self.dropped = []                                      # (path, offset, reason)

    @property
    def num_classes(self):
        """What property says, else the largest label + 1."""
        return self.property.num_classes if self.property else self.labels.largest + 1

    def batches(self, policy, prepare=None):
        """Yield (numbers, ids, images, bytes read): class ids, record ids, encoded images; metadata left out.

        policy: what to do with an unusable record, DROP, REFUSE (UserError), or None: no image is dropped, a label
        that is no class is refused. prepare(images) -> list of images, or CorruptImage in their place.
        """
        for path in self.paths:
            with RecordFile(path) as record_file:
                for records in _pieces(record_file):
                    numbers, ids, images = self._usable(path, records, policy, prepare)
                    self.num_images += len(images)
                    self.labels.add(numbers)
                    end = record_file.end_of(records[-1][0])
                    self.is_whole &= record_file.num_magic(records[0][0], end) == len(records)
                    yield numbers, ids, images, end - records[0][0]
                    record_file.forget(records[0][0], end - records[0][0])

    def _usable(self, path, records, policy, prepare):
        rows = [row for row in (self._parse(path, offset, payload, policy) for offset, payload in records) if row]
        images = [row[2] for row in rows]
        if prepare:
            images = prepare(images)
            for row, image in zip(rows, images):
                if isinstance(image, CorruptImage):
                    self._drop(path, row[3], image, policy == DROP)
            kept = [index for index, image in enumerate(images) if not isinstance(image, CorruptImage)]
            rows, images = [rows[index] for index in kept], [images[index] for index in kept]
        return [row[0] for row in rows], [row[1] for row in rows], images

    def _parse(self, path, offset, payload, policy):
        """(class, id, image, offset), or None for metadata and for what is dropped."""
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
            return number, header.id, image, offset
        except ValueError as error:
            self._drop(path, offset, error, policy == DROP)
            return None

    def _drop(self, path, offset, reason, allowed):
        if not allowed:
            raise UserError('%s: record at offset %d: %s; repair the set, or leave such records out with '
                            '--check-images drop' % (path, offset, reason))
        self.dropped.append((path, offset, str(reason)))


def _pieces(record_file):
    """Yield lists of (offset, payload) of some MB."""
    piece, size = [], 0
    for offset, payload in record_file.walk():
        piece.append((offset, payload))
        size += len(payload)
        if size >= BATCH_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


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


class Preparation:
    """Decodes images on threads, to check them or to bring them to one size."""

    def __init__(self, size=None, threads=None):
        """size (h, w): images of another size are resized and encoded as JPEG again; None: no bytes are changed."""
        self._size = size
        self._threads = threads or len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._pool.shutdown()

    def __call__(self, images):
        """List of encoded images -> list of encoded images, with CorruptImage where one cannot be decoded."""
        step = -(-len(images) // self._threads) or 1
        parts = [images[start:start + step] for start in range(0, len(images), step)]
        return list(itertools.chain.from_iterable(self._pool.map(self._prepare_all, parts)))

    def _prepare_all(self, images):
        return [self._prepare(image) for image in images]

    def _prepare(self, image):
        try:
            size = image_size(image)
            decoded = decode_bgr(image, self._size or size)
        except CorruptImage as error:
            return error
        if self._size in (None, size):
            return image
        return cv2.imencode('.jpg', decoded, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()


def warn_about_index(source):
    """Warn if there is an index that lists another number of records than were found; after the pass."""
    path, found = index_path(source.paths[0]), source.num_images + source.num_metadata + len(source.dropped)
    if len(source.paths) > 1 or not os.path.isfile(path):
        return
    with open(path, 'rb') as stream:
        listed = sum(1 for line in stream if line.strip())
    if listed != found:
        log.warning('%s lists %d records, %s holds %d: the index is not used, all records were taken',
                    path, listed, os.path.basename(source.paths[0]), found)


def first_image_size(source):
    """(h, w) as property says, else of the first image that can be read; None if there is none among the first ones."""
    if source.property:
        return source.property.height, source.property.width
    with RecordFile(source.paths[0]) as record_file:
        for _, payload in itertools.islice(record_file.walk(), 1000):
            try:
                return image_size(unpack(payload)[1])
            except (ValueError, CorruptImage):
                continue
    return None
