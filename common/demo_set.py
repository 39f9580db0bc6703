"""The demo set: rendered faces, made on first use. Nothing is downloaded, every run gives the same bytes.

240 people x 20 images to train on (train.rec, train.idx, property) and 600 pairs of 60 other people to verify on
(demo.bin), 112x112 JPEG. People differ in their traits (demo_faces); the images of one person differ in pose, light,
expression, occlusion, background and camera (demo_photo).
"""
import fcntl
import itertools
import logging
import os
import shutil

import numpy as np
from tqdm import tqdm

from common.demo_faces import Face, draw_traits
from common.demo_photo import SIZE, take_photo
from common.errors import UserError
from common.face_record import read_property
from common.identity_set import write_identity_set
from common.pair_sampling import make_pairs
from common.verification import write_bin

log = logging.getLogger('shardface')

NUM_TRAINED, IMAGES_TRAINED = 240, 20        # people, images of each
NUM_VERIFIED, IMAGES_VERIFIED = 60, 10
NUM_PAIRS = 600
FILES = ('train.rec', 'train.idx', 'property', 'demo.bin')
SEED_KEY = 'demo_seed'


def ensure_demo_set(folder, seed=0):
    """Make the demo set in `folder` unless it is there already; returns the folder's absolute path.

    It is made beside its place and renamed when complete; what a killed run left there is removed. Several processes
    may call this at once: one works, the others wait. UserError if the folder holds anything else.
    """
    folder = os.path.abspath(folder)
    parent, name = os.path.split(folder)
    partial = os.path.join(parent, '.%s.partial' % name)
    try:
        if _is_there(folder, seed):
            return folder
        lock = _lock_folder(partial)
        try:
            _empty(partial)
            if _is_there(folder, seed):          # another process was faster
                os.rmdir(partial)
            else:
                _make(partial, folder, seed)
                os.replace(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            os.close(lock)
    except OSError as error:
        raise UserError('cannot make the demo set in %s: %s; choose another folder'
                        % (folder, error.strerror)) from None
    return folder


def _is_there(folder, seed):
    """Whether the whole demo set is in the folder. UserError if something else is."""
    present = os.listdir(folder) if os.path.exists(folder) else []
    if not present:
        return False
    missing = [name for name in FILES if name not in present]
    found = None if missing else read_property(folder).extra.get(SEED_KEY)
    if found is None:
        raise UserError('%s is not empty and holds no whole demo set (%s): empty it or choose another folder'
                        % (folder, 'no ' + ', '.join(missing) if missing else 'property has no %s' % SEED_KEY))
    if found != str(seed):
        raise UserError('%s holds the demo set of seed %s, not of %d: choose another folder' % (folder, found, seed))
    return True


def _lock_folder(path):
    """Make a folder and wait until this process alone holds it -> descriptor; the lock ends when that is closed."""
    while True:
        os.makedirs(path, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:                # renamed or removed meanwhile, by the process that held it
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)         # a killed process loses its lock
        try:
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)


def _empty(folder):
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


def _make(partial, folder, seed):
    """Draw everything into the folder `partial`; `folder` is only named in the log."""
    log.info('drawing the demo set: %d people to train on, %d to verify on, into %s',
             NUM_TRAINED, NUM_VERIFIED, folder)
    counts = [IMAGES_TRAINED] * NUM_TRAINED + [IMAGES_VERIFIED] * NUM_VERIFIED
    with tqdm(total=sum(counts), desc='demo set', unit=' images', disable=None) as bar:
        images = draw_people(seed, counts, bar.update)
        trained = itertools.islice(images, NUM_TRAINED * IMAGES_TRAINED)
        write_identity_set(partial, trained, counts[:NUM_TRAINED], (SIZE, SIZE), {SEED_KEY: seed})
        verified = list(images)
    labels = np.repeat(np.arange(NUM_VERIFIED), IMAGES_VERIFIED)
    index, same = make_pairs(labels, NUM_PAIRS, np.random.RandomState([seed, len(counts), 0]))
    write_bin(os.path.join(partial, 'demo.bin'), [verified[number] for number in index.ravel()], same)


def draw_people(seed, counts, update=lambda count: None):
    """Yield JPEG bytes, counts[i] images of person i, person after person; update(count) is told of progress.

    The images of a person depend on seed and i alone. One thread draws: many small calls gain nothing from more.
    """
    rng = np.random.RandomState()
    for person, count in enumerate(counts):
        rng.seed([seed, person, 0])
        face = Face(draw_traits(rng))
        for number in range(count):
            rng.seed([seed, person, 1 + number])
            yield take_photo(face, rng)
        update(count)
