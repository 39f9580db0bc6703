"""Walking a .rec from front to back: which records are whole, and does the index know them all?"""
import hashlib
import os

import numpy as np
from tqdm import tqdm

from common.errors import UserError
from common.face_record import index_path
from common.record_index import read_index
from common.recordio import MAGIC, RecordFile, unpack

BLOCK = 1 << 22
_STEP = 1 << 26                      # bytes between two moves of the progress bar


def walk_file(path):
    """-> (offsets of the whole records int64 (n,), [problem, ...]). UserError if it is no RecordIO file at all.

    Behind damage the walk goes on at the next magic number.
    """
    starts, problems, offset, shown = [], [], 0, 0
    with RecordFile(path) as record_file, tqdm(total=record_file.size, desc='walk', unit='B', unit_scale=True,
                                               disable=None) as bar:
        while offset < record_file.size:
            try:
                end = record_file.end_of(offset)
                unpack(record_file.read(offset))
                starts.append(offset)
            except ValueError as error:
                problems.append('%s: record at offset %d: %s' % (record_file.path, offset, error))
            except UserError as error:
                problems.append(str(error))
                end = find_magic(record_file, offset + 4)
            offset = end
            if offset - shown >= _STEP:
                bar.update(offset - shown)
                shown = offset
        bar.update(record_file.size - shown)
    return np.array(starts, np.int64), problems


def find_magic(record_file, offset):
    """The next place from `offset` on, a multiple of 4, where a record may begin; the end of the file if none does."""
    for start in range(offset, record_file.size - 3, BLOCK):
        places = np.arange(start, min(start + BLOCK, record_file.size - 3), 4)
        found = np.flatnonzero(record_file.words(places, 0) == MAGIC)
        if len(found):
            return int(places[found[0]])
    return record_file.size


def compare_with_index(path_imgrec, starts):
    """Problems of the .idx of a walked file, none if there is no .idx. starts: offsets of the whole records."""
    path_index = index_path(path_imgrec)
    if not os.path.isfile(path_index):
        return []
    _, offsets = read_index(path_index)
    problems = []
    for wrong, text in ((np.setdiff1d(offsets, starts), '%s: %d lines lead to no whole record, the first to offset %d'),
                        (np.setdiff1d(starts, offsets), '%s: %d records are not listed, the first is at offset %d')):
        if len(wrong):
            problems.append(text % (path_index, len(wrong), wrong[0]) + '; --rebuild-index writes it anew')
    return problems


def md5_of(path):
    """MD5 of a file as 32 digits."""
    digest = hashlib.md5()
    try:
        with open(path, 'rb') as stream, tqdm(total=os.path.getsize(path), desc='md5', unit='B', unit_scale=True,
                                              disable=None) as bar:
            for block in iter(lambda: stream.read(BLOCK), b''):
                digest.update(block)
                bar.update(len(block))
    except OSError as error:
        raise UserError('cannot read %s: %s' % (path, error.strerror)) from None
    return digest.hexdigest()
