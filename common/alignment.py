"""A face turned, scaled and moved so that its five points come to lie where networks expect them, in 112x112 pixels."""
import cv2
import numpy as np

from common.images import CorruptImage

SIZE = (112, 112)
# x, y of left and right eye, nose, left and right corner of the mouth, as published face sets are cut
FIVE_POINTS = np.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655],
                        [70.7299, 92.2041]])


def similarity(points, targets):
    """(2, 3) float64: rotation, scale and shift that bring points (k, 2) nearest to targets (k, 2), by least squares.

    With points as complex numbers z and w around their means, w = a z where a = sum(conj(z) w) / sum(|z|^2). Mirrored
    points are not mirrored back. CorruptImage if all points are one.
    """
    center, goal = points.mean(axis=0), targets.mean(axis=0)
    z, w = ((rows - middle) @ [1, 1j] for rows, middle in ((points, center), (targets, goal)))
    spread = float(np.sum(np.abs(z) ** 2))
    if not spread > 1e-6:
        raise CorruptImage('its five points are one point')
    a = np.sum(np.conj(z) * w) / spread
    turn = np.array([[a.real, -a.imag], [a.imag, a.real]])
    return np.concatenate([turn, (goal - turn @ center)[:, None]], axis=1)


def align(image, points):
    """(h, w, 3) and its five points (5, 2) in pixels -> (112, 112, 3); black where the image ends. CorruptImage."""
    return cv2.warpAffine(image, similarity(points, FIVE_POINTS), SIZE[::-1], borderValue=0)
