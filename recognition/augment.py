"""Changes of a decoded image at training time: mirror, JPEG artefacts, colour jitter, cut-off square.

What is done to an image is a function of a row of NUM_DRAWS numbers in [0, 1), drawn for a whole batch at once
from a generator that is passed in. So results depend on the row, never on the order in which threads get there.
"""
import cv2
import numpy as np

NUM_DRAWS = 9
JITTER = 0.125                       # brightness, contrast and saturation each change by a factor of 1 +- JITTER
QUALITIES = 2, 20                    # of the JPEG artefacts, both included
FILL = 128                           # of the cut-off square: zero after the networks' normalisation, but for rounding
_GREY = 0.114, 0.587, 0.299          # weights of B, G, R


class Augment:
    """The settings. mirror: half the images are mirrored. color: 0 nothing, 1 colour jitter for every image, 2 also
    JPEG artefacts for half of them. cutoff: side of a square that is filled in half the images, 0 for none; its
    centre is any pixel, so part of it may lie outside.
    """

    def __init__(self, mirror=False, color=0, cutoff=0):
        self.mirror, self.color, self.cutoff = bool(mirror), color, cutoff

    @staticmethod
    def draw(rng, count):
        """(count, NUM_DRAWS): one row per image; the same rows whatever the settings."""
        return rng.random_sample((count, NUM_DRAWS))

    def apply(self, image, draws):
        """uint8 (h, w, 3), B, G, R -> the same, changed; may write into image."""
        mirror, artefacts, quality, brightness, contrast, saturation, cutoff, row, column = draws
        if self.mirror and mirror < 0.5:
            image = cv2.flip(image, 1)                         # twice as fast as in place
        if self.color > 1 and artefacts < 0.5:
            image = compress(image, QUALITIES[0] + int(quality * (QUALITIES[1] - QUALITIES[0] + 1)))
        if self.color > 0:
            image = jitter(image, *(1 + JITTER * (2 * draw - 1) for draw in (brightness, contrast, saturation)))
        if self.cutoff > 0 and cutoff < 0.5:
            cut_square(image, int(row * image.shape[0]), int(column * image.shape[1]), self.cutoff)
        return image


def compress(image, quality):
    """The image after a trip through JPEG."""
    return cv2.imdecode(cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)


def jitter(image, brightness, contrast, saturation):
    """x -> b * (c * (s * x + (1 - s) * grey(x)) + (1 - c) * mean grey), each factor 1 for no change.

    Rounded and clipped once, at the end; so the order of the three does not matter.
    """
    own = brightness * contrast * saturation
    grey = brightness * contrast * (1 - saturation)
    mean = sum(weight * level for weight, level in zip(_GREY, cv2.mean(image)))
    matrix = np.empty((3, 4))
    matrix[:, :3] = np.outer(np.ones(3), _GREY) * grey + np.eye(3) * own
    matrix[:, 3] = brightness * (1 - contrast) * mean
    return cv2.transform(image, matrix)


def cut_square(image, row, column, side):
    """Fill the square of an even side around (row, column), as far as it lies inside."""
    half = side // 2
    image[max(0, row - half):row + half, max(0, column - half):column + half] = FILL
