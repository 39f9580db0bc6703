"""Learning rate, and which gradient is divided by what.

The loss is the mean over the N rows of the global batch (all devices and processes). So with loss scale S:

    logits, centers   the head divides by N; all N rows meet in one shard       -> complete, never summed again
    embedding         one part per shard                                         -> summed over shards, own rows kept
    backbone          embedding gradient times S; summed over devices (and processes), then divided by S
                      (S: see recognition/loss_scale.py)
"""
import math

from common.errors import UsageError
from common.mxnet_loader import mx

DECAY = 0.1


class Schedule(mx.lr_scheduler.LRScheduler):
    """lr(n) = base_lr * min(1, n / warmup) * share(n); n, the number of the update, counts from 1.

    warmup: updates over which the rate rises from 0 on a straight line [arXiv:1706.02677]; update `warmup` is the first
    at the full rate; 0: none. A function of n alone, so a run that is resumed goes on exactly.
    """

    def __init__(self, base_lr, warmup=0):
        super().__init__(base_lr)
        self.warmup = warmup

    def __call__(self, num_update):
        rising = min(1.0, num_update / self.warmup) if self.warmup else 1.0
        return self.base_lr * rising * self.share(num_update)


class MultiStepSchedule(Schedule):
    """share(n) = 0.1 ^ (number of lr_steps below n).

    A step at 100 means: updates 1 to 100 at the base rate, from 101 on at a tenth of it.
    """

    def __init__(self, base_lr, lr_steps=(), warmup=0):
        super().__init__(base_lr, warmup)
        self.lr_steps = tuple(lr_steps)

    def share(self, num_update):
        return DECAY ** sum(num_update > step for step in self.lr_steps)


class FallingSchedule(Schedule):
    """A rate that falls over `total` updates. x(n) = (n - first) / (total - first + 1), first = max(1, warmup):
    0 at the first update at the full rate, just below 1 at the last one, which so still learns; constant after it."""

    def __init__(self, base_lr, total, warmup=0):
        """UsageError unless warmup ends before total."""
        super().__init__(base_lr, warmup)
        if not warmup < total:
            raise UsageError('warmup = %s: the learning rate must rise before lr_total = %s steps have passed'
                             % (warmup, total))
        self.total = total

    def done(self, num_update):
        first = max(1, self.warmup)
        return (min(max(num_update, first), self.total) - first) / (self.total - first + 1)


class PolySchedule(FallingSchedule):
    """share(n) = (1 - x(n)) ^ power"""

    def __init__(self, base_lr, total, warmup=0, power=2.0):
        super().__init__(base_lr, total, warmup)
        self.power = power

    def share(self, num_update):
        return (1.0 - self.done(num_update)) ** self.power


class CosineSchedule(FallingSchedule):
    """share(n) = (1 + cos(pi x(n))) / 2  [SGDR, arXiv:1608.03983, eq. 5, one period down to 0]"""

    def share(self, num_update):
        return (1.0 + math.cos(math.pi * self.done(num_update))) / 2.0


def make_schedule(policy, lr, lr_steps, warmup, total, power):
    """policy: 'steps', 'poly' or 'cosine'; the last two fall over `total` updates. UsageError if nothing says that."""
    if policy == 'steps':
        return MultiStepSchedule(lr, lr_steps, warmup)
    if not math.isfinite(total):
        raise UsageError('lr_policy = %s needs the number of steps: give --max-steps, --end-epoch or '
                         '--lr-total' % policy)
    return PolySchedule(lr, total, warmup, power) if policy == 'poly' else CosineSchedule(lr, total, warmup)


class SolverOptions:
    """SGD with momentum: schedule (update -> lr), momentum, weight decay; head multipliers on lr and decay.

    clip_norm: most that the gradient of all parameters of the backbone together may be long, 0: any length; class
    centers are not clipped, for their gradient is never there as a whole.
    """

    def __init__(self, schedule, momentum=0.9, wd=5e-4, head_lr_mult=1.0, head_wd_mult=1.0, clip_norm=0.0):
        self.schedule, self.momentum, self.wd = schedule, momentum, wd
        self.head_lr_mult, self.head_wd_mult, self.clip_norm = head_lr_mult, head_wd_mult, clip_norm

    def for_head(self, num_update):
        """(lr, momentum, wd) of the class centers at this update."""
        return self.schedule(num_update) * self.head_lr_mult, self.momentum, self.wd * self.head_wd_mult
