"""Partial FC: which class centers of a block take part in a step. Plain NumPy."""
import math

import numpy as np


class Sampler:
    """All classes of the batch and, up to a share of each block, other classes drawn at random without replacement
    [Partial FC, arXiv:2203.15565, section 3.2]. The softmax then runs over the classes that were picked.
    """

    def __init__(self, ratio, seed):
        """ratio in (0, 1]: share of the classes of a block. 1 picks all: nothing is drawn then."""
        if not 0 < ratio <= 1:
            raise ValueError('sample ratio %s is not in (0, 1]' % ratio)
        self.ratio, self.seed = ratio, seed

    def capacity(self, num_classes, num_rows):
        """Most classes that a step with num_rows images can pick of a block."""
        return min(num_classes, max(self._budget(num_classes), num_rows))

    def _budget(self, num_classes):
        return num_classes if self.ratio == 1 else math.ceil(self.ratio * num_classes)

    def pick(self, columns, start, num_classes, num_update):
        """columns (n,) int64 of the batch's labels in the block [start, start + num_classes).

        Returns the picked columns, sorted, (k,) int64: every label's, however many; a function of (seed, num_update,
        start) and the labels.
        """
        positive = np.unique(columns)
        missing = self._budget(num_classes) - len(positive)
        if missing <= 0:
            return positive
        rng = np.random.Generator(np.random.PCG64([self.seed, num_update, start]))
        drawn = rng.choice(num_classes, missing + len(positive), replace=False)
        negative = drawn[np.isin(drawn, positive, invert=True)][:missing]
        return np.sort(np.concatenate([positive, negative]))
