"""The class centers of a checkpoint: files NAME-START-STOP.npy, one row per class of the half-open range."""
import pathlib
import re

import numpy as np

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
    try:
        rows = np.load(str(path), mmap_mode='r', allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError('%s is damaged: %s' % (path, error)) from None
    if len(rows) != stop - start:
        raise UserError('%s holds %d classes, its name says %d' % (path, len(rows), stop - start))
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
