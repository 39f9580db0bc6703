"""Scores of pairs from their distances: accuracy by folds, best threshold, TAR at FAR, ROC, its area, equal error.

n pairs, D embedding size; a distance is the squared L2 distance of two unit vectors, in [0, 4]: 2 - 2 * cosine.
A pair is called the same when its distance is below the threshold.
"""
import numpy as np

FALSE_ACCEPT_RATES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
FARTHEST = 4.0


def pair_distances(embeddings):
    """(2n, D) -> (n,) float64: squared L2 distance of the two unit vectors of each pair. A zero vector stays zero."""
    unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return np.square(unit[0::2] - unit[1::2]).sum(axis=1, dtype=np.float64)


def fold_accuracy(distances, same, num_folds):
    """(mean, standard deviation) over the folds of the accuracy on one fold, at the best threshold of the others.

    distances (n,), same (n,) bool. Folds are contiguous and not shuffled; the first n % num_folds have one pair
    more. One fold is judged by its own threshold.
    """
    order = np.argsort(distances, kind='stable')
    distances, same = distances[order], same[order]
    sizes = np.full(num_folds, len(order) // num_folds)
    sizes[:len(order) % num_folds] += 1
    fold = np.repeat(np.arange(num_folds), sizes)[order]
    accuracies = np.empty(num_folds)
    for number in range(num_folds):
        judged = fold == number
        others = ~judged if num_folds > 1 else judged
        threshold = _best_of_sorted(distances[others], same[others])
        accuracies[number] = np.mean((distances[judged] < threshold) == same[judged])
    return float(accuracies.mean()), float(accuracies.std())


def best_threshold(distances, same):
    """The distance below which a pair is called the same, for the most right answers; the smallest of equals."""
    order = np.argsort(distances, kind='stable')
    return float(_best_of_sorted(distances[order], same[order]))


def _best_of_sorted(distances, same):
    """Exact, not on a grid: of all cuts of the sorted distances (n,), the one with the most right answers.

    A cut before position i calls the first i pairs the same: right are the same pairs before it and the different
    ones after it. Equal distances cannot be cut apart. The threshold lies midway between the neighbours of the cut.
    """
    right = np.concatenate([[0], np.cumsum(np.where(same, 1, -1))])       # up to a constant
    can_cut = np.concatenate([[True], distances[1:] > distances[:-1], [True]])
    cut = np.flatnonzero(can_cut)[np.argmax(right[can_cut])]
    if cut == 0:
        return distances[0]
    above = distances[cut] if cut < len(distances) else FARTHEST
    return max((distances[cut - 1] + above) / 2, np.nextafter(distances[cut - 1], np.inf))


def tar_at_far(distances, same):
    """{rate: share of the same pairs accepted at the threshold that accepts this share of different pairs or less}.

    Only rates of at least one different pair, so 1e-3 needs 1,000 of them; {0.1: nan} if there is none.
    """
    accepted, different = distances[same], np.sort(distances[~same])
    rates = [rate for rate in FALSE_ACCEPT_RATES if rate * len(different) > 1 - 1e-9]
    if len(accepted) == 0 or not rates:
        return {FALSE_ACCEPT_RATES[0]: float('nan')}
    return {rate: float(np.mean(accepted < different[int(rate * len(different) + 1e-9)])) for rate in rates}


def rates_by_name(tar_at_far):
    """{0.001: share} -> {'0.001': share}, for JSON."""
    return {'%g' % rate: share for rate, share in tar_at_far.items()}


def roc(distances, same):
    """Every point that a threshold can reach -> (far, tar), each (k,) float64, rising from 0 to 1.

    Equal distances are one step. A rate of which there are no pairs is NaN.
    """
    order = np.argsort(distances, kind='stable')
    distances, same = distances[order], same[order]
    ends = np.append(distances[1:] > distances[:-1], True)
    rates = []
    for accepted in (~same, same):
        total = np.count_nonzero(accepted)
        counts = np.cumsum(accepted)[ends]
        rates.append(np.append(0.0, counts / total) if total else np.full(len(counts) + 1, np.nan))
    return rates[0], rates[1]


def area_under_roc(distances, same):
    """The chance that a same pair is nearer than a different one, equal distances counting half. NaN if one lacks."""
    far, tar = roc(distances, same)
    return float(np.sum(np.diff(far) * (tar[1:] + tar[:-1]) / 2))


def equal_error_rate(distances, same):
    """The error where as large a share of same pairs is refused as of different ones accepted, on the straight line
    between the two neighbouring points of the ROC. NaN if one kind of pairs lacks."""
    far, tar = roc(distances, same)
    if np.isnan(far).any() or np.isnan(tar).any():
        return float('nan')
    excess = far - (1 - tar)                              # rises from -1 to 1
    after = int(np.argmax(excess >= 0))
    part = -excess[after - 1] / (excess[after] - excess[after - 1])
    return float(far[after - 1] + part * (far[after] - far[after - 1]))
