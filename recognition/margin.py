"""Target logits with a margin, and their slope."""
import math

from common.errors import UsageError
from common.mxnet_loader import mx

# 1 - cosine^2 is floored here: float32 rounding carries a cosine past 1, and 1 / sin has a pole there.
# The pole meets a gradient of size sin(theta) on its way to embedding and center, so nothing is lost.
SINE_SQUARE_FLOOR = 1e-7


class Margin:
    """Combined margin on the angle [ArcFace, arXiv:1801.07698, section 3.1, eq. 4].

    target logit = scale * (psi(m1 * theta + m2) - m3), theta = arccos(cosine).
    psi is cos up to pi and goes on falling past it, psi(x) = (-1)^k cos(x) - 2k with k = floor(x / pi)
    [SphereFace, arXiv:1704.08063, section 3.3], so that the target logit never falls while the cosine
    rises, over all of [-1, 1]; plain cos(theta + m2) would turn round for the hardest samples.

    m1: factor on the angle, >= 1 (1 is none). m2: radians added. m3: cosine subtracted. scale: > 0.
    """

    def __init__(self, m1=1.0, m2=0.0, m3=0.0, scale=64.0):
        if m1 < 1.0 or m2 < 0.0 or m3 < 0.0 or not scale > 0.0:
            raise UsageError('margin needs loss_m1 >= 1, loss_m2 >= 0, loss_m3 >= 0 and loss_s > 0, not '
                             '%s, %s, %s and %s' % (m1, m2, m3, scale))
        self.m1, self.m2, self.m3, self.scale = float(m1), float(m2), float(m3), float(scale)

    def target(self, cosine):
        """cosine (n,) float32 -> target logit (n,) and its slope d logit / d cosine (n,), both finite."""
        if self.m1 == 1.0 and self.m2 == 0.0:
            return self.scale * (cosine - self.m3), mx.nd.full(cosine.shape, self.scale, ctx=cosine.context)
        cosine = mx.nd.clip(cosine, -1.0, 1.0)
        angle = self.m1 * mx.nd.arccos(cosine) + self.m2
        turns = mx.nd.floor(angle / math.pi)
        sign = 1.0 - 2.0 * (turns % 2)                       # (-1)^k
        logit = sign * mx.nd.cos(angle) - 2.0 * turns - self.m3
        sine = mx.nd.sqrt(mx.nd.maximum(1.0 - cosine * cosine, SINE_SQUARE_FLOOR))
        slope = self.m1 * mx.nd.abs(mx.nd.sin(angle)) / sine  # (-1)^k sin is never negative
        return self.scale * logit, self.scale * slope
