"""Writing the .idx of a .rec anew."""
import os

import numpy as np

from common.errors import UserError
from common.face_record import index_path, is_metadata
from common.files import replacing
from common.recordio import RecordFile

_LINES = 1 << 16
_ID_LOW, _ID_HIGH = 4, 5             # uint32 numbers of a record


def rebuild_index(path_imgrec, force=False):
    """Write the .idx of a .rec; returns the number of its lines. UserError if it is there (unless force), or damage."""
    path_index = index_path(path_imgrec)
    if os.path.lexists(path_index) and not force:
        raise UserError('%s is there already: give --force to replace it' % path_index)
    with RecordFile(path_imgrec) as record_file:
        offsets = record_file.starts()
        keys = choose_keys(record_file, offsets)
    with replacing(path_index) as partial, open(str(partial), 'wb') as stream:
        for start in range(0, len(offsets), _LINES):
            pairs = zip(keys[start:start + _LINES].tolist(), offsets[start:start + _LINES].tolist())
            stream.writelines(b'%d\t%d\n' % pair for pair in pairs)
    return len(offsets)


def choose_keys(record_file, offsets):
    """Keys int64 (n,) of records.

    Images bear their key as id, if whoever wrote them was careful: then these are the keys, the header at the front
    has key 0, and other metadata follow the largest. Else the key is the number of the record in the file.
    """
    without_image = is_metadata(record_file, offsets)
    ids = record_file.words(offsets, _ID_HIGH).astype(np.int64) << 32 | record_file.words(offsets, _ID_LOW)
    ids = np.where(ids < 0, -1, ids)
    images = ids[~without_image]
    begins_with_header = bool(len(offsets)) and bool(without_image[0])
    lowest = 1 if begins_with_header else 0
    if len(images) == 0 or len(np.unique(images)) < len(images) or not lowest <= images.min() <= images.max() < 1 << 50:
        return np.arange(len(offsets))
    keys, others = ids.copy(), np.flatnonzero(without_image)[lowest:]
    keys[others] = images.max() + 1 + np.arange(len(others))
    keys[:lowest] = 0
    return keys
