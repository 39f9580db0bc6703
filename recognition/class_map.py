"""Which class of an earlier training each class is: a text file with one line `OLD NEW` per class that is kept."""
import re

import numpy as np

from common.errors import UserError

_LINE = re.compile(r'(\d{1,18})(?:\s*,\s*|\s+)(\d{1,18})')


class ClassMap:
    """new (n,) sorted and old (n,) int64 class ids: class new[i] was class old[i]. All others are new."""

    def __init__(self, old, new):
        order = np.argsort(new, kind='stable')
        self.old, self.new = np.asarray(old, np.int64)[order], np.asarray(new, np.int64)[order]

    @classmethod
    def same(cls, num_classes):
        """Every class keeps its number."""
        return cls(np.arange(num_classes), np.arange(num_classes))

    def within(self, start, stop):
        """Of the classes [start, stop): (places of those that are kept, counted from start, and what they were)."""
        first, last = np.searchsorted(self.new, [start, stop])
        return self.new[first:last] - start, self.old[first:last]


def read_class_map(path, num_old, num_new):
    """ClassMap of a file. Blank lines and what follows # do not count.

    UserError names file and line: no two whole numbers, OLD not in [0, num_old), NEW not in [0, num_new), NEW twice.
    """
    old, new, seen = [], [], {}
    for number, text in _lines(path):
        match = _LINE.fullmatch(text)
        if not match:
            raise UserError('%s:%d: two class ids, OLD NEW, are expected, not %r' % (path, number, text[:60]))
        pair = int(match.group(1)), int(match.group(2))
        for name, value, count in zip(('old', 'new'), pair, (num_old, num_new)):
            if value >= count:
                raise UserError('%s:%d: %s class %d does not exist: there are %d, counted from 0'
                                % (path, number, name, value, count))
        if pair[1] in seen:
            raise UserError('%s:%d: new class %d was given in line %d already' % (path, number, pair[1], seen[pair[1]]))
        seen[pair[1]] = number
        old.append(pair[0])
        new.append(pair[1])
    if not new:
        raise UserError('%s maps no class: lines OLD NEW are expected' % path)
    return ClassMap(old, new)


def _lines(path):
    """(number, text) of the lines of a file that say something."""
    try:
        with open(path, encoding='utf-8') as stream:
            for number, line in enumerate(stream, start=1):
                text = line.partition('#')[0].strip()
                if text:
                    yield number, text
    except (OSError, UnicodeDecodeError) as error:
        raise UserError('--class-map %s: cannot read it as text (%s)'
                        % (path, getattr(error, 'strerror', None) or 'not UTF-8')) from None
