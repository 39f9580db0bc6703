"""Headers of many records in memory, looked at together: what is left for each is to decode its image."""
from collections import namedtuple

import numpy as np

from common.class_ids import read_class_ids
from common.jpeg_headers import are_decodable
from common.recordio import HEAD_SIZE, LABEL_SIZE, MAX_DATA, WHOLE

# Where the image of each record begins and ends, bytes, and its label among the classes of all sets, (n,) int64 each.
# Label -1: not all is as usual with this record, it must be opened by itself.
Opened = namedtuple('Opened', 'begins ends labels')


def open_many(view, offsets, classes):
    """Opened for the records at `offsets` of a RecordView; classes: SetClasses of their set."""
    lrec, flag = view.words(offsets, 1), view.words(offsets, 2).astype(np.int64)
    begins = offsets + HEAD_SIZE + LABEL_SIZE + 4 * flag
    ends = offsets + HEAD_SIZE + (lrec & MAX_DATA)
    labels = read_class_ids(view, offsets, classes.label_format)
    usual = (lrec >> 29 == WHOLE) & (labels >= 0) & (labels < classes.num_classes) & (ends <= view.size)
    rows = np.flatnonzero(usual)
    usual[rows] = are_decodable(view.bytes, begins[rows], ends[rows])
    return Opened(begins, ends, np.where(usual, labels + classes.first_label, -1))
