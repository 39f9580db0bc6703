"""Pairs of images for a verification set."""
import numpy as np

from common.errors import UserError


def make_pairs(labels, num_pairs, rng):
    """Pairs for a set: -> (index (num_pairs, 2), same (num_pairs,) bool), drawn from rng (RandomState).

    Same and different pairs take turns, so every fold is balanced; identities have equal chances; no pair is drawn
    twice. UserError if the labels (one per image) do not allow that many.
    """
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    num_same = (num_pairs + 1) // 2
    index = np.empty((num_pairs, 2), np.int64)
    index[0::2] = _same_pairs(members, num_same, rng)
    index[1::2] = _different_pairs(members, num_pairs - num_same, rng)
    return index, np.arange(num_pairs) % 2 == 0


def _same_pairs(members, count, rng):
    """In rounds, one pair of each identity a round, until there are enough."""
    queues = []
    for images in members:
        first, second = np.triu_indices(len(images), 1)
        order = rng.permutation(len(first))
        queues.append(np.stack([images[first[order]], images[second[order]]], axis=1))
    available = sum(map(len, queues))
    if available < count:
        raise UserError('%d pairs of one person are wanted, the images give %d: ask for fewer pairs or give more '
                        'images of each person' % (count, available))
    pairs = []
    for turn in range(max(map(len, queues), default=0)):
        pairs += [queues[person][turn] for person in rng.permutation(len(queues)) if turn < len(queues[person])]
        if len(pairs) >= count:
            break
    return np.array(pairs[:count], np.int64).reshape(-1, 2)


def _different_pairs(members, count, rng):
    """One image each of two people, drawn until there are enough."""
    pairs = {}
    for _ in range(50 * count if len(members) > 1 else 0):
        if len(pairs) == count:
            break
        first = rng.randint(len(members))
        second = (first + rng.randint(1, len(members))) % len(members)
        images = sorted(rng.choice(members[person]) for person in (first, second))
        pairs[tuple(images)] = None
    if len(pairs) < count:
        raise UserError('%d pairs of different people are wanted, the images give too few: ask for fewer pairs or '
                        'give more people' % count)
    return np.array(list(pairs), np.int64).reshape(-1, 2)
