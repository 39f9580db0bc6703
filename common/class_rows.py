"""The class centers of a checkpoint: files NAME-START-STOP.npy, one row per class of the half-open range."""
import pathlib
import re

import numpy as np

from common.array_files import map_array
from common.errors import UserError


def class_file(name, start, stop):
    """Name of the file."""
    return '%s-%09d-%09d.npy' % (name, start, stop)


def saved_ranges(folder, name):
    """{(start, stop): path} of one kind of array in a head folder, in order."""
    pattern = re.compile(r'%s-(\d+)-(\d+)\.npy' % name)
    matches = {path: pattern.fullmatch(path.name) for path in sorted(pathlib.Path(folder).glob('*.npy'))}
    return dict(sorted(((int(match.group(1)), int(match.group(2))), path) for path, match in matches.items() if match))


def map_rows(path, start, stop):
    """The rows of one file, mapped, not read. UserError if it is damaged or has another number of rows."""
    rows = map_array(path)
    if rows.shape[:1] != (stop - start,):
        raise UserError('%s holds %d classes, its name says %d' % (path, sum(rows.shape[:1]), stop - start))
    return rows


def load_head_range(folder, name, start, stop):
    """Read the rows of classes [start, stop), whatever shards wrote them. UserError if some are missing."""
    parts, wanted = [], start
    for (first, last), path in saved_ranges(folder, name).items():
        if first <= wanted < min(last, stop):
            parts.append(map_rows(path, first, last)[wanted - first:min(last, stop) - first])
            wanted = min(last, stop)
    if wanted != stop:
        raise UserError('%s holds no %s of class %d' % (folder, name, wanted))
    return np.concatenate(parts)


class ClassRows:
    """The rows of all classes in a head folder, mapped; the system reads what is asked for."""

    def __init__(self, folder, name):
        """UserError if there are none, if a range is missing, or if the files do not fit together."""
        self._parts, self.num_classes = [], 0
        for (start, stop), path in saved_ranges(folder, name).items():
            if start != self.num_classes:
                raise UserError('%s holds no %s of class %d' % (folder, name, self.num_classes))
            self._parts.append((start, stop, map_rows(path, start, stop)))
            self.num_classes = stop
            if self._parts[-1][2].shape[1:] != self.row_shape:
                raise UserError('%s holds rows of shape %s, the files before it of %s'
                                % (path, self._parts[-1][2].shape[1:], self.row_shape))
        if not self._parts:
            raise UserError('%s holds no files %s such as the folder PREFIX-NNNN.head of a checkpoint'
                            % (folder, class_file(name, 0, 10)))

    @property
    def row_shape(self):
        return self._parts[0][2].shape[1:]

    def take(self, classes):
        """classes (n,) of [0, num_classes) -> their rows (n, ...) float32."""
        rows = np.empty(classes.shape + self.row_shape, np.float32)
        for start, stop, part in self._parts:
            here = np.flatnonzero((classes >= start) & (classes < stop))
            rows[here] = part[classes[here] - start]
        return rows
