"""Where the mate of a face ranks among very many other people (MegaFace, CVPR 2016, section 4): by blocks.

P probe images of known people; N distractors, images of others; D embedding size; all embeddings of length 1.
A pair is a probe and a mate, another probe image of the same person: n pairs, each way round. The mate is put among the
distractors, and its rank is 1 + the number of them that are as near to the probe as it is or nearer. The (P, N) matrix
of cosines never exists; one block (PROBES, block) at a time does.
"""
import numpy as np

from common.pair_scores import FALSE_ACCEPT_RATES

TIE = 1e-6                           # cosines that differ by less are equal: rounding depends on the size of the blocks
PROBES = 256                         # probes of one block
BINS = 1 << 18                       # of the histogram of cosines over [-1, 1]: 7.6e-6 each
_EXCESS = 1.001                      # cosines of unit vectors in float32 may pass 1 a little
_WIDE = 8.0                          # keys of neighbouring probes are this far apart


class DistractorRanks:
    """Counts of distractors that are nearer than mates, for growing numbers of distractors at once.

    cosines (n,) float32: of the pairs, by probe, then rising; begins (P + 1,): the pairs of probe i are
    [begins[i], begins[i + 1]).
    """

    def __init__(self, probes, labels, num_levels):
        """probes (P, D) float32; labels (P,): of their people; num_levels: of numbers of distractors."""
        self._probes, self._num_levels = probes, num_levels
        self.cosines, self.begins = mate_cosines(probes, labels)
        owner = np.repeat(np.arange(len(probes)), np.diff(self.begins))
        self._keys = owner * _WIDE + self.cosines - TIE                      # float64, rising
        self._lowest = np.full(len(probes), np.inf, np.float32)
        has = np.diff(self.begins) > 0
        self._lowest[has] = self.cosines[self.begins[:-1][has]] - 2 * TIE
        self._beaten = np.zeros((num_levels, len(self.cosines)), np.int64)
        self._histogram = np.zeros(BINS, np.int64)

    def add(self, distractors, levels):
        """distractors (m, D) float32; levels (m,): the first number of distractors that each belongs to."""
        for start in range(0, len(self._probes), PROBES):
            cosines = self._probes[start:start + PROBES] @ distractors.T
            self._histogram += np.bincount(bins(cosines).ravel(), minlength=BINS)
            self._count(start, cosines, levels)

    def _count(self, start, cosines, levels):
        """Of each pair of these probes, the distractors that beat it but not the next better one, by level."""
        row, column = np.nonzero(cosines >= self._lowest[start:start + len(cosines), None])
        keys = (row + start) * _WIDE + cosines[row, column]
        better = np.searchsorted(self._keys, keys, side='right') - 1         # the best pair that it beats
        own = better >= self.begins[row + start]
        begin, end = self.begins[start], self.begins[min(start + PROBES, len(self._probes))]
        width = end - begin
        found = levels[column[own]].astype(np.int64) * width + better[own] - begin
        self._beaten[:, begin:end] += np.bincount(found, minlength=self._num_levels * width).reshape(
            self._num_levels, width)

    def ranks(self):
        """(num_levels, n) int64, from 1: of every pair, for every number of distractors."""
        counts = np.cumsum(self._beaten, axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1]    # of the pairs at or behind
        ends = np.append(counts, np.zeros((len(counts), 1), np.int64), axis=1)
        behind = np.repeat(self.begins[1:], np.diff(self.begins))            # where the next probe begins
        return 1 + counts - ends[:, behind]

    def tar_at_far(self):
        """{rate: share of the pairs accepted where this share of all P * N cosines, or less, is}.

        The threshold is an edge of a bin, the first one that is high enough. Rates of less than one cosine are absent.
        """
        total = int(self._histogram.sum())
        above = np.append(np.cumsum(self._histogram[::-1])[::-1], 0)         # [i]: accepted by the lower edge of bin i
        accepted = bins(self.cosines)
        return {rate: float(np.mean(accepted >= np.argmax(above <= int(rate * total + 1e-9))))
                for rate in FALSE_ACCEPT_RATES if rate * total > 1 - 1e-9}


def bins(cosines):
    """Numbers of histogram bins, int32."""
    return np.clip((cosines + _EXCESS) * np.float32(BINS / (2 * _EXCESS)), 0, BINS - 1).astype(np.int32)


def mate_cosines(probes, labels):
    """-> cosines (n,), begins (P + 1,), see DistractorRanks."""
    order = np.argsort(labels, kind='stable')
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    found = [None] * len(probes)
    for group in groups:
        among = probes[group] @ probes[group].T
        for place, probe in enumerate(group):
            found[probe] = np.sort(np.delete(among[place], place))
    return np.concatenate(found), np.cumsum([0] + [len(one) for one in found])


def peak_bytes(num_probes, embedding_size, num_pairs, num_distractors, num_levels, block):
    """The most memory that the arrays here and those of a block of distractors take, for the worst embeddings."""
    cells = min(PROBES, num_probes) * block
    return (8 * num_probes * (embedding_size + 64) + 12 * block * embedding_size + num_pairs * (40 + 48 * num_levels)
            + 16 * num_distractors + 80 * cells + 32 * BINS + (1 << 20))
