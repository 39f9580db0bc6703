"""How well the labels of training images are mixed, in numbers."""
import numpy as np

from common.face_labels import read_labels

STRETCHES, STRETCH = 64, 1024        # places and records in a row that are looked at in a large set
SORTED_EXCESS = 0.2                  # share of equal neighbours beyond chance, from which a set counts as sorted


def repeats_by_chance(labels):
    """Share of neighbours with equal label in a random order of these labels."""
    counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
    total = counts.sum()
    return float((counts * (counts - 1)).sum() / max(total * (total - 1), 1))


class MixtureMeter:
    """Measures labels as they come by."""

    def __init__(self):
        self._batches = self._neighbours = self._repeats = self._distinct = 0
        self._last = None

    def add(self, labels):
        """labels: (B,) of the next batch."""
        joined = labels if self._last is None else np.concatenate([[self._last], labels])
        self._neighbours += len(joined) - 1
        self._repeats += np.count_nonzero(joined[1:] == joined[:-1])
        self._distinct += len(np.unique(labels))
        self._batches += 1
        self._last = labels[-1]

    @property
    def repeats(self):
        """Share of neighbours with equal label."""
        return self._repeats / max(self._neighbours, 1)

    @property
    def distinct(self):
        """Mean number of different labels in a batch."""
        return self._distinct / max(self._batches, 1)


def measure_stored_order(face_set, label_format):
    """(share of neighbours with equal label in the file, the same by chance). Large sets are sampled."""
    count = face_set.num_images
    starts = np.arange(0, count, STRETCH)
    if len(starts) > STRETCHES:
        starts = np.linspace(0, count - STRETCH, STRETCHES).astype(np.int64)
    parts = [read_labels(face_set, np.arange(start, min(start + STRETCH, count)), label_format) for start in starts]
    repeats = sum(np.count_nonzero(part[1:] == part[:-1]) for part in parts)
    return repeats / max(sum(len(part) - 1 for part in parts), 1), repeats_by_chance(np.concatenate(parts))
