"""Indexed face sets: a folder with train.rec, train.idx and, mostly, a text file `property`.

Two layouts are read:
    identity   key 0 is a header record, images follow, then one record per identity. Header and identity
               records are metadata: a label of two numbers (a range of keys) and no image.
    plain      every record is an image (im2rec).
Metadata is recognised by its content. The ranges are not used: they are float32, wrong above 2**24.

property      first line "classes,height,width"; more lines "key=value" may follow:
    label_format=split24   every label is two numbers, class = first * 2**24 + second: exact for any class id.
               Without it the class is the label, or the first number of it: exact below 2**24.
"""
import logging
import os

import numpy as np

from common.errors import UserError
from common.files import replacing
from common.record_index import read_index
from common.recordio import FIRST, HEAD_SIZE, LABEL_SIZE, MAGIC, WHOLE, RecordFile, pack

log = logging.getLogger('shardface')

SPLIT = 1 << 24                      # float32 holds whole numbers up to here
FLOAT32, SPLIT24 = 'float32', 'split24'
METADATA_SIZE = HEAD_SIZE + LABEL_SIZE + 8
CHECKED_IN_FULL = 4096               # records up to which every magic number is looked at when a set is opened
SAMPLES = 256                        # looked at in a larger set, evenly spread
_CHUNK = 1 << 20


class Property:
    """What the file `property` of a set says."""

    def __init__(self, num_classes, height, width, extra=None):
        """extra: further keys and values, all text."""
        self.num_classes, self.height, self.width = num_classes, height, width
        self.extra = dict(extra or {})

    @property
    def label_format(self):
        return self.extra.get('label_format', FLOAT32)


def read_property(folder):
    """Property of a set, None if it has no such file. UserError if the file makes no sense."""
    path = os.path.join(os.path.abspath(folder), 'property')
    try:
        with open(path, encoding='utf-8') as stream:
            lines = [line.strip() for line in stream.read(1 << 16).splitlines() if line.strip()]
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError('cannot read %s: %s' % (path, error)) from None
    numbers = [number.strip() for number in (lines or [''])[0].split(',')]
    if len(numbers) != 3 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise UserError('%s: the first line must be "classes,height,width", it is %r' % (path, (lines or [''])[0][:60]))
    extra = dict(line.split('=', 1) for line in lines[1:] if '=' in line)
    found = Property(*map(int, numbers), extra=extra)
    if found.label_format not in (FLOAT32, SPLIT24):
        raise UserError('%s: label_format=%s is not known (%s, %s are)' % (path, found.label_format, FLOAT32, SPLIT24))
    return found


def write_property(folder, found):
    """Write `property` into a folder, under a temporary name first."""
    path = os.path.join(os.path.abspath(folder), 'property')
    lines = ['%d,%d,%d' % (found.num_classes, found.height, found.width)]
    lines += ['%s=%s' % pair for pair in found.extra.items()]
    with replacing(path) as partial:
        partial.write_text('\n'.join(lines) + '\n', encoding='utf-8')


def class_id(header, label_format=FLOAT32):
    """Class of an image record as an int. ValueError if its label is not a whole number of 0 or more."""
    if label_format == SPLIT24:
        if header.flag < 2:
            raise ValueError('label of one number in a set of label_format=split24, which has two')
        high, low = (_whole(number) for number in header.label[:2])
        if low >= SPLIT:
            raise ValueError('label (%d, %d): the second number must be below 2**24' % (high, low))
        return high * SPLIT + low
    return _whole(header.label if header.flag == 0 else header.label[0])


def max_classes(label_format):
    """Classes that labels of this format can tell apart."""
    return SPLIT * SPLIT if label_format == SPLIT24 else SPLIT


def class_in_range(header, num_classes, label_format=FLOAT32):
    """class_id, with a ValueError for what is outside [0, num_classes)."""
    number = class_id(header, label_format)
    if number >= num_classes:
        raise ValueError('label %d outside [0, %d)' % (number, num_classes))
    return number


def _whole(number):
    number = float(number)
    if not number >= 0 or not number.is_integer():
        raise ValueError('label %g is not a class id: a whole number of 0 or more is needed' % number)
    return int(number)


def pack_class_id(number, image, key=0, label_format=FLOAT32):
    """Payload of an image record. ValueError for a class that label_format cannot hold."""
    return pack(divmod(number, SPLIT) if label_format == SPLIT24 else number, image, key)


def pack_metadata(first, stop, key=0):
    """Payload of a header or identity record for a range of keys; above 2**24 the stored range is rounded."""
    return pack(np.array([first, stop], np.float32), b'', key)


def is_metadata(record_file, offsets):
    """(n,) bool: which of the records at these offsets are whole ones of two numbers and no image."""
    words = record_file.words
    return ((words(offsets, 0) == MAGIC) & (words(offsets, 1) == (WHOLE << 29 | METADATA_SIZE - HEAD_SIZE))
            & (words(offsets, 2) == 2))


class FaceSet:
    """An opened indexed set: where its images are. Positions 0 ... num_images - 1 follow the keys."""

    is_whole = True                                            # the place of every image is known

    def __init__(self, record_file, path_index, keys, offsets, num_metadata):
        """keys, offsets: (n,) of the images only, sorted by key."""
        self.record_file, self.path_index = record_file, path_index
        self.keys, self.offsets, self.num_metadata = keys, offsets, num_metadata
        self._fits_memory = record_file.size < physical_memory() // 2

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self.record_file.close()

    @property
    def path(self):
        """Absolute path of the .rec."""
        return self.record_file.path

    @property
    def layout(self):
        return 'identity' if self.num_metadata else 'plain'

    @property
    def num_images(self):
        return len(self.offsets)

    def name(self, position):
        """What to call a record in a message."""
        return 'record %d of %s' % (self.keys[position], self.path)

    def will_need(self, positions):
        """Ask the system to read these records soon, a mean record's bytes each.

        Without it, each of them would fetch its whole neighbourhood (128 KB) when it is looked at. That is welcome
        for a file that fits in memory: it is read in once, and asking would cost 2 % of the decoding for ever.
        """
        if self._fits_memory:
            return
        mean_size = self.record_file.size // self.num_images
        for offset in self.offsets[positions].tolist():
            self.record_file.will_need(offset, mean_size)

    def read(self, position):
        """Payload of an image record. UserError with key, offset and both files if it is not there."""
        try:
            return self.record_file.read(int(self.offsets[position]))
        except UserError as error:
            raise UserError('%s (key %d of %s)' % (error, self.keys[position], self.path_index)) from None


def physical_memory():
    """Bytes of the machine; 0 where it does not say."""
    names = getattr(os, 'sysconf_names', {})
    if 'SC_PHYS_PAGES' not in names or 'SC_PAGE_SIZE' not in names:
        return 0
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def index_path(path_imgrec):
    """Absolute path of the .idx that belongs to a .rec."""
    return os.path.splitext(os.path.abspath(path_imgrec))[0] + '.idx'


def open_face_set(path_imgrec):
    """FaceSet of a .rec and the .idx beside it, checked without reading it all.

    Checked: both files are there; the index is sound, inside the .rec, and no two keys share a record; the magic
    number at sampled offsets; the last record is whole; there are images. UserError otherwise.
    """
    path_imgrec, path_index = os.path.abspath(path_imgrec), index_path(path_imgrec)
    _check_files(path_imgrec, path_index)
    record_file = RecordFile(path_imgrec)
    try:
        keys, offsets = read_index(path_index)
        if len(keys) == 0:
            raise UserError('%s is empty: no records are listed in it' % path_index)
        if keys[-1] <= np.iinfo(np.int32).max:
            keys = keys.astype(np.int32)                       # half the memory of a set of tens of millions
        without_image = _IndexCheck(record_file, path_index, keys, offsets).run()
        num_metadata = int(np.count_nonzero(without_image))
        if num_metadata == len(keys):
            raise UserError('%s holds no images, only %d metadata records' % (path_imgrec, num_metadata))
        if num_metadata and not without_image[0]:
            log.warning('%s has no header record; %d records with two numbers and no image are left out',
                        path_imgrec, num_metadata)
        images = _selection(~without_image)
        return FaceSet(record_file, path_index, keys[images], offsets[images], num_metadata)
    except BaseException:
        record_file.close()
        raise


def _selection(wanted):
    """An index for the wanted items: a slice if they are neighbours, which saves copying large arrays."""
    start, stop = int(wanted.argmax()), len(wanted) - int(wanted[::-1].argmax())
    return slice(start, stop) if wanted[start:stop].all() else wanted


def _check_files(path_imgrec, path_index):
    missing = [path for path in (path_imgrec, path_index) if not os.path.isfile(path)]
    if missing == [path_index]:
        raise UserError('missing file: %s. A converted (shuffled) set has no .idx: set is_shuffled_rec=True for it; '
                        'any other set needs its .idx' % path_index)
    if missing:
        raise UserError('missing files: %s' % ', '.join(missing))


class _IndexCheck:
    """Compares an index with its .rec, and finds the metadata records."""

    def __init__(self, record_file, path_index, keys, offsets):
        self.record_file, self.path_index = record_file, path_index
        self.keys, self.offsets = keys, offsets

    def run(self):
        """(n,) bool: which records are metadata. UserError names key, offset and both files."""
        offsets, size = self.offsets, self.record_file.size
        self._refuse(np.flatnonzero((offsets < 0) | (offsets > size - HEAD_SIZE)),
                     'is outside the file of %d bytes: the .rec is truncated or the .idx is of another file' % size)
        if np.bitwise_or.reduce(offsets) & 3:
            self._refuse(np.flatnonzero(offsets & 3), 'is not a multiple of 4: create the .idx again')
        in_order = (offsets[1:] > offsets[:-1]).all()
        order = None if in_order else np.argsort(offsets, kind='stable')           # place in the file -> record
        self._check_sampled()
        self._check_last(len(offsets) - 1 if in_order else order[-1])
        return self._find_metadata(order)

    def _refuse(self, wrong, reason):
        if len(wrong):
            raise UserError('%s: key %d of %s points to offset %d, which %s'
                            % (self.record_file.path, self.keys[wrong[0]], self.path_index, self.offsets[wrong[0]],
                               reason))

    def _check_sampled(self):
        count = len(self.offsets)
        sample = np.arange(count) if count <= CHECKED_IN_FULL else np.linspace(0, count - 1, SAMPLES).astype(np.int64)
        kind = self.record_file.words(self.offsets[sample], 1) >> 29
        magic = self.record_file.words(self.offsets[sample], 0)
        self._refuse(sample[(magic != MAGIC) | (kind > FIRST)],
                     'has no record there (wrong magic number): the .idx belongs to another file or is damaged; '
                     'create it again')

    def _check_last(self, last):
        try:
            self.record_file.end_of(int(self.offsets[last]))
        except UserError as error:
            raise UserError('%s (key %d of %s)' % (error, self.keys[last], self.path_index)) from None

    def _find_metadata(self, order):
        """Candidates by size, the distance to the next record in the file, are looked at; nothing else is read."""
        count = len(self.offsets)
        found = np.zeros(count, bool)
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            records = np.arange(start, stop) if order is None else order[start:stop]
            ends = np.arange(start + 1, min(stop + 1, count)) if order is None else order[start + 1:stop + 1]
            offsets = self.offsets[records]
            size = np.append(self.offsets[ends], [self.record_file.size] * (len(offsets) - len(ends))) - offsets
            self._refuse(records[size < HEAD_SIZE], 'is also the offset of another key: create the .idx again')
            candidates = records[size == METADATA_SIZE]
            found[candidates] = is_metadata(self.record_file, self.offsets[candidates])
        return found
