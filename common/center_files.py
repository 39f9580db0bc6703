"""Class centers of a checkpoint as one array with its labels, copied block by block."""
import os
import zipfile

import numpy as np

from common.array_files import npy_header
from common.class_rows import ClassRows, load_head_range
from common.errors import UserError
from common.files import replacing
from common.progress import progress_bar

BLOCK_BYTES = 16 << 20
CENTERS, LABELS = 'centers', 'labels'


class CenterRanges:
    """Some classes of a head folder, in ascending order of the ranges that are asked for."""

    def __init__(self, folder, ranges=None):
        """ranges: [(first, last), ...], last included; None: all. UserError for classes that the folder has not."""
        rows = ClassRows(folder, CENTERS)
        self.folder, self.row_shape = folder, rows.row_shape
        self.ranges = ranges or [(0, rows.num_classes - 1)]
        highest = max(last for _, last in self.ranges)
        if highest >= rows.num_classes:
            raise UserError('%s has classes 0 to %d; --labels asks for %d' % (folder, rows.num_classes - 1, highest))
        self.count = sum(last - first + 1 for first, last in self.ranges)

    def _pieces(self):
        """(first, stop) of pieces of BLOCK_BYTES at the most."""
        size = max(1, BLOCK_BYTES // (4 * int(np.prod(self.row_shape))))
        for first, last in self.ranges:
            for start in range(first, last + 1, size):
                yield start, min(start + size, last + 1)

    def write_centers(self, stream):
        """An .npy file, (n, D) float32, with J sub-centers (n, J, D)."""
        stream.write(npy_header('<f4', (self.count,) + self.row_shape))
        with progress_bar(total=self.count, desc='centers', unit=' classes', disable=None) as bar:
            for start, stop in self._pieces():
                rows = load_head_range(self.folder, CENTERS, start, stop)
                stream.write(np.ascontiguousarray(rows, '<f4').data)
                bar.update(stop - start)

    def write_labels(self, stream):
        """An .npy file, (n,) int64: the class ids of the rows."""
        stream.write(npy_header('<i8', (self.count,)))
        for start, stop in self._pieces():
            stream.write(np.arange(start, stop, dtype='<i8').data)


def labels_path(path):
    """'x.npy' -> 'x-labels.npy'."""
    return os.path.splitext(path)[0] + '-labels.npy'


def write_centers(path, centers):
    """Write CenterRanges: an .npz with `centers` and `labels`, or an .npy beside which labels_path() is written."""
    if path.endswith('.npz'):
        with replacing(path) as partial, zipfile.ZipFile(str(partial), 'w', zipfile.ZIP_STORED) as archive:
            for name, write in ((CENTERS, centers.write_centers), (LABELS, centers.write_labels)):
                with archive.open(zipfile.ZipInfo(name + '.npy'), 'w', force_zip64=True) as stream:
                    write(stream)
        return
    for name, write in ((labels_path(path), centers.write_labels), (path, centers.write_centers)):
        with replacing(name) as partial, open(str(partial), 'wb') as stream:
            write(stream)
