"""Target logits with a margin, and their slope. docs/losses.md has the losses that are made of these."""
import math

import numpy as np

from common.errors import UsageError
from common.mxnet_loader import mx

# 1 - cosine^2 is floored here: float32 rounding carries a cosine past 1, and 1 / sin has a pole there.
# The pole meets a gradient of size sin(theta) on its way to embedding and center, so nothing is lost.
SINE_SQUARE_FLOOR = 1e-7
DRAW_STREAM = 1                          # sets these random numbers apart from those of Sampler
SHORTEST, LONGEST = 1e-3, 100.0          # lengths of embeddings are cut to these
FIRST_MEAN, FIRST_DEVIATION = 20.0, 100.0
DEVIATION_FLOOR = 1e-3                   # added to the deviation of lengths, which may be 0


class Margin:
    """Combined margin on the angle [ArcFace, arXiv:1801.07698, section 3.1, eq. 4].

    target logit = scale * (psi(m1 * theta + m2) - m3), theta = arccos(cosine).
    psi is cos up to pi and goes on falling past it, psi(x) = (-1)^k cos(x) - 2k with k = floor(x / pi)
    [SphereFace, arXiv:1704.08063, section 3.3], so that the target logit never falls while the cosine
    rises, over all of [-1, 1]; plain cos(theta + m2) would turn round for the hardest samples.

    m1: factor on the angle, >= 1 (1 is none). m2: radians added. m3: cosine subtracted. scale: > 0.

    Other losses have m2 and m3 for each row: subclasses, whose of_rows() gives them.
    """

    needs_norms = False                  # does of_rows() need the lengths of the embeddings?

    def __init__(self, m1=1.0, m2=0.0, m3=0.0, scale=64.0):
        if m1 < 1.0 or m2 < 0.0 or m3 < 0.0 or not scale > 0.0:
            raise UsageError('margin needs loss_m1 >= 1, loss_m2 >= 0, loss_m3 >= 0 and loss_s > 0, not '
                             '%s, %s, %s and %s' % (m1, m2, m3, scale))
        self.m1, self.m2, self.m3, self.scale = float(m1), float(m2), float(m3), float(scale)
        self.is_linear = m1 == 1.0 and m2 == 0.0

    def of_rows(self, num_update, shape, part, norms):
        """Once per part of a step, in its order: (2, N) float32 array, m2 and m3 of each row; None: rows are alike.

        num_update: number of the step. shape (R, P, B): rows of the step, by process, part and place; part: which is
        this one, N = R B. norms (N,): lengths of the embeddings if needs_norms, else None.
        """
        return None

    def state(self):
        """What later steps depend on, for JSON; restore() takes it."""
        return None

    def restore(self, state):
        """LookupError, TypeError or ValueError if it is not of this loss."""
        if state is not None:
            raise ValueError('the state of a margin that has none')

    def target(self, cosine, added=None):
        """cosine (n,) float32 -> target logit (n,) and its slope d logit / d cosine (n,), both finite.

        added (2, n): m2 and m3 of each entry, in place of those of all. An angle that m2 < 0 carries below 0 counts as
        0: the target logit is at its top, and flat.
        """
        m2, m3 = (self.m2, self.m3) if added is None else added
        if self.is_linear:
            return self.scale * (cosine - m3), mx.nd.full(cosine.shape, self.scale, ctx=cosine.context)
        cosine = mx.nd.clip(cosine, -1.0, 1.0)
        angle = self.m1 * mx.nd.arccos(cosine) + m2
        if added is not None:
            angle = mx.nd.maximum(angle, 0.0)
        turns = mx.nd.floor(angle / math.pi)
        sign = 1.0 - 2.0 * (turns % 2)                       # (-1)^k
        logit = sign * mx.nd.cos(angle) - 2.0 * turns - m3
        sine = mx.nd.sqrt(mx.nd.maximum(1.0 - cosine * cosine, SINE_SQUARE_FLOOR))
        slope = self.m1 * mx.nd.abs(mx.nd.sin(angle)) / sine  # (-1)^k sin is never negative
        return self.scale * logit, self.scale * slope


class ElasticMargin(Margin):
    """Margins drawn anew for each row of each step [ElasticFace, arXiv:2109.09416, section III].

    target logit = scale * (psi(m1 * theta + E(m2, m2_std)) - E(m3, m3_std)), E(m, d) normal of mean m, deviation d.
    ElasticFace-Arc has m2 and m2_std alone, ElasticFace-Cos m3 and m3_std alone. The draws are a function of (seed,
    number of the step, row of the step): the same on all processes, for any number of devices, in parts or in one.
    """

    def __init__(self, m1=1.0, m2=0.0, m3=0.0, scale=64.0, m2_std=0.0, m3_std=0.0, seed=0):
        super().__init__(m1, m2, m3, scale)
        if not (m2_std >= 0.0 and m3_std >= 0.0):
            raise UsageError('margin needs loss_m2_std >= 0 and loss_m3_std >= 0, not %s and %s' % (m2_std, m3_std))
        self.m2_std, self.m3_std, self.seed = float(m2_std), float(m3_std), seed
        self.is_linear = self.is_linear and m2_std == 0.0

    def of_rows(self, num_update, shape, part, norms):
        rng = np.random.Generator(np.random.PCG64([self.seed, num_update, 0, DRAW_STREAM]))
        drawn = rng.standard_normal((2,) + tuple(shape))[:, :, part].reshape((2, -1))
        rows = [[self.m2], [self.m3]] + np.array([[self.m2_std], [self.m3_std]]) * drawn
        return mx.nd.from_numpy(rows.astype(np.float32))


class AdaFaceMargin(Margin):
    """Margins by the length of the embedding, which stands for the quality of the image [AdaFace, arXiv:2204.00964,
    section 3.3].

    q = clip(h * (|x| - mean) / deviation, -1, 1), m2 = -m * q, m3 = m * q + m.
    target logit = scale * (psi(max(theta + m2, 0)) - m3); gradients take q as a constant.

    |x| is cut to [0.001, 100]. mean and deviation are running ones: before rows get their margins, old becomes
    momentum * old + (1 - momentum) * that of all N rows. They begin at 20 and 100, as in the authors' code.
    """

    needs_norms = True

    def __init__(self, m=0.4, h=0.333, scale=64.0, momentum=0.99):
        super().__init__(scale=scale)
        if not (m >= 0.0 and h > 0.0 and 0.0 <= momentum < 1.0):
            raise UsageError('AdaFace needs loss_ada_m >= 0, loss_ada_h > 0 and loss_ada_mom in [0, 1), not %s, %s and '
                             '%s' % (m, h, momentum))
        self.m, self.h, self.momentum, self.is_linear = float(m), float(h), float(momentum), False
        self._running = mx.nd.array([FIRST_MEAN, FIRST_DEVIATION])

    def of_rows(self, num_update, shape, part, norms):
        norms = mx.nd.clip(norms, SHORTEST, LONGEST)
        mean = mx.nd.mean(norms)
        variance = mx.nd.sum(mx.nd.square(mx.nd.broadcast_sub(norms, mean))) / max(1, norms.size - 1)
        new = mx.nd.concat(mean, mx.nd.sqrt(variance), dim=0)
        self._running = self.momentum * self._running.as_in_context(norms.context) + (1.0 - self.momentum) * new
        mean, deviation = self._running[0:1], self._running[1:2] + DEVIATION_FLOOR
        quality = mx.nd.broadcast_div(mx.nd.broadcast_sub(norms, mean), deviation)
        quality = mx.nd.clip(self.h * quality, -1.0, 1.0)
        return mx.nd.stack(-self.m * quality, self.m * quality + self.m, axis=0)

    def state(self):
        mean, deviation = self._running.asnumpy().tolist()
        return {'norm_mean': mean, 'norm_deviation': deviation}

    def restore(self, state):
        numbers = [float(state['norm_mean']), float(state['norm_deviation'])]
        if not (np.isfinite(numbers).all() and min(numbers) >= 0.0):
            raise ValueError('norm_mean and norm_deviation are %s and %s' % tuple(numbers))
        self._running = mx.nd.array(numbers)
