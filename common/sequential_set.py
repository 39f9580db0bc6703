"""Shuffled face sets, which rec2shufrec makes: train.rec, or parts train-00000-of-00004.rec ..., and no index.

Where the records are is found by one look at all headers, or, in large files, by the light index beside them.
"""
import glob
import logging
import os
import re

import numpy as np

from common.chunk_index import read_chunk_index
from common.errors import UserError
from common.face_record import METADATA_SIZE, FaceSet, index_path, read_property
from common.recordio import HEAD_SIZE, RecordFile

log = logging.getLogger('shardface')

SHUFFLED, RECORDS = 'shuffled', 'records'                      # keys of `property`
LOOKED_AT = 4096                     # records at either end of each file that are looked at for metadata
INDEX_FROM = 1 << 31                 # bytes of a file from which its light index saves time worth having
_PART = re.compile(r'-(\d{5})-of-(\d{5})\.rec$')
_CONVERT = 'convert it with common/rec2shufrec.py, or set is_shuffled_rec=False'


class JoinedRecords:
    """Several .rec files one behind the other, read as one."""

    def __init__(self, paths):
        self.files = []
        try:
            self.files += map(RecordFile, paths)
        except BaseException:
            self.close()
            raise
        self.path = paths[0] if len(paths) == 1 else '%s ... %s' % (paths[0], os.path.basename(paths[-1]))
        sizes = [(file.size + 3) & ~3 for file in self.files]
        self.bases = np.cumsum([0] + sizes)                    # offset of the first record of each file; the end
        self.size = int(self.bases[-1])

    def close(self):
        for file in self.files:
            file.close()

    def file_of(self, offset):
        """Number of the file that a record is in."""
        return int(np.searchsorted(self.bases, offset, 'right')) - 1

    def read(self, offset):
        """Payload of the record at an offset."""
        number = self.file_of(offset)
        return self.files[number].read(offset - int(self.bases[number]))

    def words(self, offsets, index):
        """As RecordFile.words, for offsets in any order."""
        if len(self.files) == 1:
            return self.files[0].words(offsets, index)
        numbers = np.searchsorted(self.bases, offsets, 'right') - 1
        found = np.empty(len(offsets), np.uint32)
        for number in np.unique(numbers):
            mine = numbers == number
            found[mine] = self.files[number].words(offsets[mine] - self.bases[number], index)
        return found


class SequentialSet(FaceSet):
    """A shuffled set while it is opened. Position i is the i-th of the records that are known, front to back."""

    def __init__(self, records, whole):
        """records: JoinedRecords; whole: look at every record. UserError for a damaged file or one with metadata."""
        numbers, offsets, counts = zip(*(_find_records(file, whole) for file in records.files))
        self.file_firsts = np.cumsum((0,) + counts)            # number of the first record of each file; of all
        super().__init__(records, None, _joined(numbers, self.file_firsts), _joined(offsets, records.bases), 0)
        self._refuse_metadata()

    @property
    def num_records(self):
        """All records, known or not."""
        return int(self.file_firsts[-1])

    @property
    def is_whole(self):
        """Whether the place of every record is known; else of one every 2 MB."""
        return self.num_images == self.num_records

    def name(self, position):
        number = int(np.searchsorted(self.file_firsts, self.keys[position], 'right')) - 1
        return 'record %d of %s' % (self.keys[position] - self.file_firsts[number], self.record_file.files[number].path)

    def _refuse_metadata(self):
        words, bounds = self.record_file.words, np.searchsorted(self.keys, self.file_firsts)
        for first, stop in zip(bounds[:-1], bounds[1:]):
            ends = [np.arange(first, min(first + LOOKED_AT, stop)), np.arange(max(first, stop - LOOKED_AT), stop)]
            positions = np.concatenate(ends)
            offsets = self.offsets[positions]
            wrong = positions[(words(offsets, 1) == METADATA_SIZE - HEAD_SIZE) & (words(offsets, 2) == 2)]
            if len(wrong):
                raise UserError('%s has two numbers as label and no image: this is an indexed set, and '
                                'is_shuffled_rec=True needs a shuffled one; %s' % (self.name(wrong[0]), _CONVERT))


def _find_records(file, whole):
    """Numbers and offsets of some or all records of a file, and how many it has."""
    found = read_chunk_index(file) if file.size >= INDEX_FROM and not whole else None
    if found is None:
        offsets = file.starts()
        found = np.arange(len(offsets)), offsets, len(offsets)
    return found


def _joined(parts, firsts):
    """Arrays one behind the other, to each of which its first number is added; large ones are not copied."""
    for part, first in zip(parts, firsts):
        part += first
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def open_sequential_set(path_imgrec, whole=False):
    """SequentialSet of FOLDER/train.rec, or of its parts. UserError for missing, damaged and unconverted files.

    whole: look at every record header even if there is a light index; always so without `property`.
    """
    paths = find_parts(path_imgrec)
    folder, found = os.path.dirname(paths[0]), read_property(os.path.dirname(paths[0]))
    if found is None or SHUFFLED not in found.extra:
        if os.path.isfile(index_path(path_imgrec)):
            raise UserError('%s has an index (%s) and no mark that it was shuffled: this is an indexed set, and '
                            'is_shuffled_rec=True needs a shuffled one; %s'
                            % (paths[0], os.path.basename(index_path(path_imgrec)), _CONVERT))
        log.warning('%s: no property file says that common/rec2shufrec.py shuffled this set', folder)
    records = JoinedRecords(paths)
    try:
        opened = SequentialSet(records, whole or found is None)
        _check_count(opened, found)
        return opened
    except BaseException:
        records.close()
        raise


def _check_count(opened, found):
    stated = found.extra.get(RECORDS) if found else None
    if stated is not None and stated != str(opened.num_records):
        raise UserError('%s holds %d records, but property says %s: files are missing or of another set; convert or '
                        'copy it again' % (opened.path, opened.num_records, stated))


def find_parts(path_imgrec):
    """Absolute paths of the files of a set, in order: the .rec itself, or NAME-00000-of-00002.rec, ... beside it.

    UserError if there are neither or both, or if parts are missing.
    """
    path_imgrec = os.path.abspath(path_imgrec)
    pattern = glob.escape(os.path.splitext(path_imgrec)[0]) + '-*-of-*.rec'
    parts = sorted(path for path in glob.glob(pattern) if _PART.search(path))
    if os.path.isfile(path_imgrec):
        if parts:
            raise UserError('%s and %s are both there: remove what does not belong to the set'
                            % (path_imgrec, parts[0]))
        return [path_imgrec]
    if not parts:
        raise UserError('missing file: %s (nor are there parts of it like %s)' % (
            path_imgrec, os.path.basename(part_path(path_imgrec, 0, 2))))
    count = int(_PART.search(parts[0]).group(2))
    wanted = [part_path(path_imgrec, number, count) for number in range(count)]
    if parts != wanted:
        raise UserError('%s: %d parts are wanted, missing or wrong: %s' % (
            os.path.dirname(path_imgrec), count, ', '.join(sorted(set(parts) ^ set(wanted)))))
    return parts


def part_path(path_imgrec, number, count):
    """Path of part `number` of `count`: NAME-00001-of-00004.rec."""
    return '%s-%05d-of-%05d.rec' % (os.path.splitext(path_imgrec)[0], number, count)
