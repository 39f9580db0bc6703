"""Opening a face set for the tools: indexed, shuffled, or a .rec that has lost its index."""
import os

import numpy as np

from common.errors import UserError
from common.face_record import FaceSet, index_path, is_metadata, open_face_set, read_property
from common.recordio import RecordFile
from common.sequential_set import SHUFFLED, find_parts, open_sequential_set


def record_path(path):
    """Path of the .rec that a user means by a folder or a file."""
    return os.path.join(os.path.abspath(path), 'train.rec') if os.path.isdir(path) else os.path.abspath(path)


def is_shuffled(path_imgrec):
    """Whether `property` marks the set as shuffled. UserError if that makes no sense."""
    found = read_property(os.path.dirname(path_imgrec))
    return found is not None and SHUFFLED in found.extra


def open_any_set(path_imgrec):
    """FaceSet with all images of a set. UserError as the ways to open one have it.

    Without an index its keys are the numbers of the records in the file.
    """
    if is_shuffled(path_imgrec) or len(find_parts(path_imgrec)) > 1:
        return open_sequential_set(path_imgrec, whole=True)
    if os.path.isfile(index_path(path_imgrec)):
        return open_face_set(path_imgrec)
    return _open_without_index(path_imgrec)


def _open_without_index(path_imgrec):
    record_file = RecordFile(path_imgrec)
    try:
        offsets = record_file.starts()
        images = np.flatnonzero(~is_metadata(record_file, offsets))
        if len(images) == 0:
            raise UserError('%s holds no images, only %d metadata records' % (record_file.path, len(offsets)))
        return FaceSet(record_file, None, images, offsets[images], len(offsets) - len(images))
    except BaseException:
        record_file.close()
        raise
