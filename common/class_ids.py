"""Class ids of many records at once, from the labels that stand in their first words."""
import numpy as np

from common.face_record import SPLIT, SPLIT24
from common.recordio import HEAD_SIZE, LABEL_SIZE, MAX_DATA

_LREC, _FLAG, _LABEL, _FIRST, _SECOND = 1, 2, 3, (HEAD_SIZE + LABEL_SIZE) // 4, (HEAD_SIZE + LABEL_SIZE) // 4 + 1


def read_class_ids(record_file, offsets, label_format):
    """What class_id says of the records at `offsets` (int64 (n,)), as int64 (n,); -1 where it raises an error.

    record_file: RecordFile or JoinedRecords. Records of several parts must be read one by one instead: their first
    part may end inside the label.
    """
    words = record_file.words
    lrec, flag = words(offsets, _LREC), words(offsets, _FLAG).astype(np.int64)
    label = np.where(flag > 0, words(offsets, _FIRST), words(offsets, _LABEL)).view(np.float32)
    largest = 2.0**38 if label_format == SPLIT24 else 2.0**62  # so that the class fits in 62 bits
    with np.errstate(invalid='ignore'):                        # NaN labels are looked for below
        number = label.astype(np.float64)
        is_class = (number >= 0) & (number == np.floor(number)) & (number < largest)
        if label_format == SPLIT24:
            low = words(offsets, _SECOND).view(np.float32).astype(np.float64)
            is_class &= (flag >= 2) & (low >= 0) & (low < SPLIT) & (low == np.floor(low))
            number = number * SPLIT + low
    is_class &= (lrec & MAX_DATA) >= LABEL_SIZE + 4 * flag
    found = np.full(len(number), -1, np.int64)
    found[is_class] = number[is_class].astype(np.int64)
    return found
