"""Verification: are two images of the same person? Sets of pairs (.bin), accuracy by folds, TAR at FAR.

    python common/verification.py --model models/r50-arcface-emore/model,1 --data-dir faces_emore --target lfw

See verification_command.py for what it prints.

.bin    a pickle of (list of 2n encoded images, list of n flags); images 2i and 2i + 1 are pair i, its flag is true
        when they show the same person.
n pairs, b batch size, D embedding size.
"""
import concurrent.futures
import logging
import os
import pickle
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np

from common.errors import UserError
from common.files import replacing
from common.images import CorruptImage, decode_rgb
from common.pair_scores import (
    FALSE_ACCEPT_RATES,
    area_under_roc,
    best_threshold,
    equal_error_rate,
    fold_accuracy,
    pair_distances,
    rates_by_name,
    tar_at_far,
)
from common.plain_pickle import PlainArray, load_plain

log = logging.getLogger('shardface')

NUM_FOLDS = 10


class VerificationSet:
    """Pairs of images, kept encoded: pair i is images[2 * i] and images[2 * i + 1].

    Sets use many images in several pairs. distinct lists each once, images[i] is distinct[position[i]].
    """

    def __init__(self, name, images, same):
        """images: list of 2n encoded images (bytes); same: (n,) bool. UserError if the numbers disagree or n is 0."""
        self.name, self.same = name, np.asarray(same, bool)
        positions = {}
        self.position = np.array([positions.setdefault(image, len(positions)) for image in images], np.int64)
        self.distinct = list(positions)
        if len(self.same) == 0 or len(images) != 2 * len(self.same):
            raise UserError('verification set %s has %d images and %d flags: each pair needs two images and one flag; '
                            'build or copy it again' % (name, len(images), len(self.same)))

    @property
    def images(self):
        return [self.distinct[position] for position in self.position]


class VerificationResult:
    """What evaluate() found. All of it comes from one pass over the images and their mirror images.

    accuracy, accuracy_std: mean and standard deviation over the folds, plain embeddings.
    accuracy_flip, accuracy_flip_std: the same for the sum of the embeddings of an image and of its mirror image.
    threshold: the distance below which pairs are called the same, best over all pairs; with flip.
    tar_at_far: {false accept rate: true accept rate}; auc: area under the ROC; eer: equal error rate; all with flip.
    xnorm: mean length of the embeddings. distances (n,) with flip, same (n,) bool.
    num_folds; note: what the reader should know about these numbers, or ''.
    """

    def __init__(self, plain, flipped, xnorm, same):
        """plain, flipped: distances (n,) without and with flip."""
        self.num_folds = min(NUM_FOLDS, len(same))
        self.accuracy, self.accuracy_std = fold_accuracy(plain, same, self.num_folds)
        self.accuracy_flip, self.accuracy_flip_std = fold_accuracy(flipped, same, self.num_folds)
        self.threshold = best_threshold(flipped, same)
        self.tar_at_far = tar_at_far(flipped, same)
        self.auc, self.eer = area_under_roc(flipped, same), equal_error_rate(flipped, same)
        self.xnorm, self.distances, self.same = xnorm, flipped, same
        self.note = '; '.join(_notes(same, self.num_folds))

    def figures(self):
        """{name: number} of all that is told of it, for JSON; tar_at_far: {'0.001': share}."""
        named = {name: getattr(self, name) for name in (
            'accuracy', 'accuracy_std', 'accuracy_flip', 'accuracy_flip_std', 'threshold', 'auc', 'eer', 'xnorm')}
        return dict(named, tar_at_far=rates_by_name(self.tar_at_far))


def _notes(same, num_folds):
    num_different = len(same) - np.count_nonzero(same)
    if len(same) == 1:
        yield 'one pair: its threshold is its own'
    elif num_folds < NUM_FOLDS:
        yield '%d folds for %d pairs' % (num_folds, len(same))
    if num_different in (0, len(same)):
        yield 'only %s pairs: no TAR at FAR, and accuracy says little' % ('different' if num_different else 'same')
    elif num_different * FALSE_ACCEPT_RATES[0] < 1:
        yield '%d different pairs are too few for TAR at FAR' % num_different


def load_bin(path):
    """VerificationSet of a .bin file written by Python 2 or 3; nothing in the file is executed.

    UserError names the file: missing, not a pickle, truncated, not made of images and flags.
    """
    path = os.path.abspath(path)
    try:
        with open(path, 'rb') as stream:
            content = load_plain(stream)
        images, same = _images_and_flags(content)
    except OSError as error:
        raise UserError('cannot read %s: %s' % (path, error.strerror)) from None
    except (EOFError, pickle.UnpicklingError) as error:
        if isinstance(error, EOFError) or 'truncated' in str(error):
            raise UserError('%s is truncated, or no verification set: copy it again' % path) from None
        raise UserError('%s is not a verification set (%s): a .bin is a pickle of a list of encoded images and a list '
                        'of flags; build or copy it again' % (path, str(error)[:120])) from None
    return VerificationSet(os.path.splitext(os.path.basename(path))[0], images, same)


def _images_and_flags(content):
    """Unpickled content -> (list of bytes, (n,) bool). UnpicklingError if it is made of anything else."""
    if not isinstance(content, (list, tuple)) or len(content) != 2:
        raise pickle.UnpicklingError('it holds no pair of lists')
    images, flags = (part.values() if isinstance(part, PlainArray) else part for part in content)
    for part in (images, flags):
        if not isinstance(part, (list, tuple, np.ndarray)):
            raise pickle.UnpicklingError('it holds no pair of lists')
    odd = [flag for flag in flags if not isinstance(flag, (bool, int, np.number, np.bool_))]
    if odd:
        raise pickle.UnpicklingError('%.20r is not a flag' % odd[0])
    return [_image_bytes(image) for image in images], np.array([bool(flag) for flag in flags], bool)


def _image_bytes(image):
    if isinstance(image, bytes):
        return image
    if isinstance(image, str):      # Python 2 bytes that another program read as latin1 and stored again
        try:
            return image.encode('latin1')
        except UnicodeEncodeError:
            pass
    if isinstance(image, PlainArray):
        image = image.values()
    if isinstance(image, bytearray) or (isinstance(image, np.ndarray) and image.dtype.itemsize == 1):
        return bytes(image)
    raise pickle.UnpicklingError('%.20r is not an encoded image' % (image,))


def write_bin(path, images, same):
    """Write a .bin that Python 3.4 and later reads: 2n encoded images, n flags. A temporary name is used first."""
    vset = VerificationSet(os.path.basename(path), [bytes(image) for image in images], same)
    with replacing(path) as partial, open(str(partial), 'wb') as stream:
        pickle.dump((vset.images, vset.same.tolist()), stream, protocol=4)


def evaluate(vset, embed, batch_size, size):
    """VerificationResult of a VerificationSet.

    embed(images uint8 (b, 3, h, w)) -> (b, D), called with exactly batch_size images each time; size (h, w).
    Warns when the result looks as if the flags or the images were wrong. UserError: see embed_pairs.
    """
    plain, mirrored = embed_pairs(vset, embed, batch_size, size)
    xnorm = float(np.mean([np.linalg.norm(plain, axis=1), np.linalg.norm(mirrored, axis=1)]))
    flipped = pair_distances(plain + mirrored)
    result = VerificationResult(pair_distances(plain), flipped, xnorm, vset.same)
    is_same = vset.same
    if min(result.accuracy, result.accuracy_flip) < 0.5 or (
            0 < is_same.sum() < len(is_same) and flipped[is_same].mean() > flipped[~is_same].mean()):
        log.warning('verification set %s: accuracy %.3f, worse than guessing. An untrained network does that; else '
                    'look for inverted flags, or images cut or coloured unlike the training images',
                    vset.name, result.accuracy_flip)
    return result


def embed_pairs(vset, embed, batch_size, size):
    """-> (plain, mirrored), each (2n, D) float32: embeddings of all images and of their mirror images.

    Every distinct image is decoded and embedded once, batch by batch. The last batch is filled up with copies of its
    last image, whose embeddings are dropped. UserError names set and image for a corrupt image and for an embedding
    that is not finite.
    """
    count = len(vset.distinct)
    parts = [], []
    for images in _decoded_batches(vset, batch_size, size):
        mirror = np.ascontiguousarray(images[..., ::-1])
        for part, batch in zip(parts, (images, mirror)):
            part.append(np.array(embed(batch), np.float32))           # a copy: embed may use its memory again
    plain, mirrored = (np.concatenate(part)[:count] for part in parts)
    bad = ~(np.isfinite(plain).all(axis=1) & np.isfinite(mirrored).all(axis=1))
    if bad.any():
        raise UserError('verification set %s: the embedding of image %d is NaN or infinite (as are %d of %d): training '
                        'has diverged; go back to the last good checkpoint and lower the learning rate'
                        % (vset.name, np.argmax(bad[vset.position]), np.count_nonzero(bad), count))
    return plain[vset.position], mirrored[vset.position]


def _decoded_batches(vset, batch_size, size):
    """Yield the distinct images, uint8 (batch_size, 3, h, w); the next batch is decoded meanwhile."""
    count = len(vset.distinct)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(_decode_batch, vset, 0, batch_size, size)
        for start in range(0, count, batch_size):
            images = ahead.result()
            if start + batch_size < count:
                ahead = pool.submit(_decode_batch, vset, start + batch_size, batch_size, size)
            yield images


def _decode_batch(vset, start, batch_size, size):
    images = np.empty((batch_size, 3) + tuple(size), np.uint8)
    encoded = vset.distinct[start:start + batch_size]
    for row, image in enumerate(encoded):
        try:
            decode_rgb(image, size, out=images[row])
        except CorruptImage as error:
            raise UserError('verification set %s: image %d is corrupt: %s; build or copy the set again'
                            % (vset.name, np.argmax(vset.position == start + row), error)) from None
    images[len(encoded):] = images[len(encoded) - 1]
    return images


if __name__ == '__main__':
    from common.verification_command import main
    sys.exit(main())
