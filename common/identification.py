"""1:N identification of templates: which one of a gallery is a probe? CMC, and TPIR at FPIR.

P probes, G gallery templates, one for each subject; D embedding size; all of length 1. A probe whose subject is in the
gallery has a mate there. The (P, G) matrix of cosines never exists, only blocks of it.
"""
import numpy as np

from common.distractor_ranks import TIE

RANKS = (1, 5, 10)
RATES = (0.01, 0.1)
NO_MATE = -1


class Search:
    """What was found for each probe.

    mate (P,): row of the gallery or NO_MATE. mate_cosine (P,) float32, NaN without one. best_other (P,) float32: the
    largest cosine but that of the mate, -inf if there is none. rank (P,): 1 + number of others as near as the mate or
    nearer (ties, see TIE, count against it), 0 without one. top_others: the largest cosines of all others, falling.
    """

    def __init__(self, probes, gallery, mate, block, num_top):
        """probes (P, D), gallery (G, D) float32; block: probes at once; num_top: how many top_others are kept."""
        self.mate, parts, self.top_others = mate, [], np.empty(0, np.float32)
        for start in range(0, len(probes), block):
            cosines, here = probes[start:start + block] @ gallery.T, mate[start:start + block]
            has = np.flatnonzero(here != NO_MATE)
            own = np.full(len(here), np.nan, np.float32)
            own[has] = cosines[has, here[has]]
            cosines[has, here[has]] = -np.inf
            rank = np.where(here != NO_MATE, 1 + (cosines >= own[:, None] - TIE).sum(axis=1), 0)
            parts.append((own, cosines.max(axis=1), rank))
            self.top_others = largest(np.append(self.top_others, cosines[np.isfinite(cosines)]), num_top)
        self.mate_cosine, self.best_other, self.rank = (np.concatenate(part) for part in zip(*parts))

    @property
    def mated(self):
        return self.mate != NO_MATE


def largest(values, count):
    """The `count` largest, falling."""
    if len(values) > count:
        values = np.partition(values, len(values) - count)[len(values) - count:] if count else values[:0]
    return np.sort(values)[::-1]


def find_mates(probe_subjects, gallery_subjects):
    """(P,): row of the gallery with the subject of each probe, or NO_MATE. Subjects of the gallery differ."""
    order = np.argsort(gallery_subjects, kind='stable')
    place = np.minimum(np.searchsorted(gallery_subjects[order], probe_subjects), len(order) - 1)
    row = order[place]
    return np.where(gallery_subjects[row] == probe_subjects, row, NO_MATE)


def cmc(search):
    """{rank: share of the probes with a mate whose mate is among the first `rank`}, {} if none has one."""
    ranks = search.rank[search.mated]
    return {rank: float(np.mean(ranks <= rank)) for rank in RANKS} if len(ranks) else {}


def open_set_tpir(search):
    """{FPIR: TPIR}: false and true positive identification rate, with the probes that have no mate in the gallery.

    The threshold is the lowest that the best cosine of this share of them, or less, is above; TPIR is the share of the
    mates that are above it. Rates of less than one probe are absent.
    """
    others = largest(search.best_other[~search.mated], len(search.mate))
    mates = search.mate_cosine[search.mated]
    return {rate: float(np.mean(mates > others[int(rate * len(others) + 1e-9)]))
            for rate in RATES if len(mates) and rate * len(others) > 1 - 1e-9}


def closed_set_tpir(search):
    """{FPIR: TPIR} where all probes have mates, as published for galleries that are joined.

    The threshold is the ceil(FPIR * P)-th largest cosine of all probes and others; TPIR is the share of the mates that
    are above it. num_top of the search must be that many.
    """
    found = {}
    for rate in RATES:
        place = num_top(rate, len(search.mate)) - 1
        if place < len(search.top_others):
            found[rate] = float(np.mean(search.mate_cosine > search.top_others[place]))
    return found


def num_top(rate, num_probes):
    """How many of the largest cosines of others a rate needs."""
    return int(np.ceil(rate * num_probes - 1e-9))
