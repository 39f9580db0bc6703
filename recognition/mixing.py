"""How well the labels of training images are mixed, in numbers."""
import collections

import numpy as np

from common.face_record import class_id
from common.recordio import unpack

LOOKED_AT = 4096                     # records that are looked at for the order in which a set is stored
MEASURED = 1 << 20                   # images that are enough to tell how an epoch is mixed
SORTED_EXCESS = 0.2                  # share of equal neighbours beyond chance, from which labels count as sorted

# share of neighbours with equal label; the same in a random order of these labels; mean number of labels in a part
Mixture = collections.namedtuple('Mixture', 'repeats by_chance distinct')


def measure(stretches):
    """Mixture of labels that follow one another within each stretch, a list of int arrays."""
    repeats = sum(np.count_nonzero(part[1:] == part[:-1]) for part in stretches)
    neighbours = sum(len(part) - 1 for part in stretches)
    counts = np.unique(np.concatenate(stretches), return_counts=True)[1].astype(np.float64)
    total = counts.sum()
    by_chance = (counts * (counts - 1)).sum() / max(total * (total - 1), 1)
    return Mixture(repeats / max(neighbours, 1), by_chance, np.mean([len(np.unique(part)) for part in stretches]))


def is_sorted(mixture):
    """Whether labels are much less mixed than chance would have it."""
    return mixture.repeats - mixture.by_chance > SORTED_EXCESS * (1 - mixture.by_chance)


class MixtureMeter:
    """Measures an epoch, or its first MEASURED images, while it goes by."""

    def __init__(self):
        self._batches, self._count = [], 0

    def add(self, labels):
        """labels: (B,) of the next batch."""
        if self._count < MEASURED:
            self._batches.append(labels)
            self._count += len(labels)

    def result(self):
        """Mixture; distinct: labels in a batch."""
        return measure([np.concatenate(self._batches)])._replace(distinct=measure(self._batches).distinct)


def measure_stored_order(table, label_format):
    """Mixture of the records as they are stored; reads some chunks of a ChunkTable all over the set."""
    stretches, count = [], 0
    for chunk in np.random.RandomState(0).permutation(len(table)):
        view, offsets, _ = table.read(chunk)
        labels = [_label(view.read(offset), label_format) for offset in offsets[:LOOKED_AT].tolist()]
        stretches += [np.array(labels)] if labels else []
        count += len(labels)
        if count >= LOOKED_AT:
            break
    return measure(stretches)


def _label(payload, label_format):
    """Class, or -1 for a damaged record: that is met when it is decoded."""
    try:
        return class_id(unpack(payload)[0], label_format)
    except ValueError:
        return -1
