"""Learning rate, and which gradient is divided by what.

The loss is the mean over the N rows of the global batch (all devices and processes). So with loss scale S:

    logits, centers   the head divides by N; all N rows meet in one shard       -> complete, never summed again
    embedding         one part per shard                                         -> summed over shards, own rows kept
    backbone          embedding gradient times S; summed over devices (and processes), then divided by S
                      (S: see recognition/loss_scale.py)
"""
from common.mxnet_loader import mx

DECAY = 0.1


class MultiStepSchedule(mx.lr_scheduler.LRScheduler):
    """lr(update) = base_lr * min(1, update / warmup) * 0.1 ^ (number of lr_steps below update); update counts from 1.

    A step at 100 means: updates 1 to 100 at the base rate, from 101 on at a tenth of it. warmup: updates over which
    the rate rises from 0 on a straight line [arXiv:1706.02677]; update `warmup` is the first at the full rate; 0: none.
    """

    def __init__(self, base_lr, lr_steps=(), warmup=0):
        super().__init__(base_lr)
        self.lr_steps, self.warmup = tuple(lr_steps), warmup

    def __call__(self, num_update):
        rising = min(1.0, num_update / self.warmup) if self.warmup else 1.0
        return self.base_lr * rising * DECAY ** sum(num_update > step for step in self.lr_steps)


class SolverOptions:
    """SGD with momentum: schedule (update -> lr), momentum, weight decay; head multipliers on lr and decay."""

    def __init__(self, schedule, momentum=0.9, wd=5e-4, head_lr_mult=1.0, head_wd_mult=1.0):
        self.schedule, self.momentum, self.wd = schedule, momentum, wd
        self.head_lr_mult, self.head_wd_mult = head_lr_mult, head_wd_mult

    def for_head(self, num_update):
        """(lr, momentum, wd) of the class centers at this update."""
        return self.schedule(num_update) * self.head_lr_mult, self.momentum, self.wd * self.head_wd_mult
