"""Real photographs as a training set and as pairs of people who are not in it."""
import pathlib

import numpy as np

from common.identity_set import write_identity_set
from common.pair_sampling import make_pairs
from common.verification import VerificationSet, write_bin

SIZE = (112, 112)


def split_people(source, num_held, seed=0):
    """Folders of people, PERSON/PHOTO.jpg -> (trained, held), two lists of lists of paths; held has num_held people.

    Who is held out depends on the names and the seed alone.
    """
    people = sorted(path for path in pathlib.Path(source).iterdir() if path.is_dir())
    photos = [sorted(path.glob('*.jpg')) for path in people]
    order = np.random.RandomState(seed).permutation(len(people))
    return [photos[number] for number in np.sort(order[num_held:])], [photos[number] for number in np.sort(
        order[:num_held])]


def real_pairs(people, num_pairs, seed=0):
    """VerificationSet `real` of photographs of these people (lists of paths)."""
    labels = np.repeat(np.arange(len(people)), [len(paths) for paths in people])
    index, same = make_pairs(labels, num_pairs, np.random.RandomState(seed))
    images = [path.read_bytes() for paths in people for path in paths]
    return VerificationSet('real', [images[number] for number in index.ravel()], same)


def write_real_set(source, folder, num_held=226, num_pairs=600, seed=0):
    """Write train.rec, train.idx, property and real.bin into a folder; returns the number of (people, photographs)
    to train on."""
    trained, held = split_people(source, num_held, seed)
    counts = [len(paths) for paths in trained]
    folder.mkdir(parents=True, exist_ok=True)
    write_identity_set(str(folder), (path.read_bytes() for paths in trained for path in paths), counts, SIZE)
    pairs = real_pairs(held, num_pairs, seed)
    write_bin(str(folder / 'real.bin'), pairs.images, pairs.same)
    return len(counts), sum(counts)
