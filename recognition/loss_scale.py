"""Loss scale of half precision: a factor on the gradient that keeps it inside the range of float16.

float16 holds 6e-8 to 65504. The gradient entering the backbone is multiplied by the scale S, in float32, and divided
by S, in float32 again, at the update of the float32 master weights. Small gradients survive where S is large; where it
is too large they overflow to infinity, and then that step of the backbone is skipped.

What a skipped step leaves alone: parameters, master weights, momentum and update counts of the backbone. What it
keeps: the update of the class centers, whose gradients are float32, never carry S and were right before the
backbone's were known; and the running statistics of batch norm, which belong to the forward pass.
"""
import logging

from common.errors import UserError
from common.mxnet_loader import mx

log = logging.getLogger('shardface')

DYNAMIC = 'dynamic'
MAX_SKIPS_IN_ROW = 50
ARRAYS_PER_CHECK = 200      # the operator holds this many on GPU


class ConstantScale:
    """The factor S = `value` of every step. num_skipped, num_skipped_in_row: steps that overflowed so far."""

    level = logging.WARNING      # of messages on skipped steps

    def __init__(self, value):
        self.value = float(value)
        self.num_skipped = self.num_skipped_in_row = 0

    def accept(self, finite, num_update):
        """Take in whether the gradients of a step, made with `value`, are finite; True if it may update the backbone.

        UserError after 50 skipped steps in a row. num_update: number of the step, for messages.
        """
        if finite:
            self.num_skipped_in_row = 0
            self._after_good_step()
            return True
        self.num_skipped, self.num_skipped_in_row = self.num_skipped + 1, self.num_skipped_in_row + 1
        used = self.value
        self._after_overflow()
        if self.num_skipped_in_row >= MAX_SKIPS_IN_ROW:
            raise UserError('half precision gradients overflowed at %d steps in a row, at last with loss scale %g at '
                            'step %d: lower --lr, %sor train without --fp16-scale'
                            % (self.num_skipped_in_row, used, num_update, self.other_remedy))
        if self.num_skipped & (self.num_skipped - 1) == 0:           # the 1st, 2nd, 4th ...: a log, not a flood
            log.log(self.level, 'step %d: half precision gradients overflowed with loss scale %g, backbone not '
                    'updated; next scale %g; %d such steps so far', num_update, used, self.value, self.num_skipped)
        return False

    other_remedy = 'give a smaller --fp16-scale or dynamic, '

    def _after_good_step(self):
        """A constant stays."""

    def _after_overflow(self):
        """A constant stays."""

    def state(self):
        """Plain numbers for a checkpoint."""
        return {'num_skipped': self.num_skipped, 'num_skipped_in_row': self.num_skipped_in_row}

    def restore(self, state):
        """Go on from state(), also from that of a scale of the other class: the scale is then that of the setting."""
        self.num_skipped, self.num_skipped_in_row = state['num_skipped'], state['num_skipped_in_row']

    def __str__(self):
        return 'loss scale %g, %d skipped' % (self.value, self.num_skipped)


class DynamicScale(ConstantScale):
    """The largest factor that does not overflow, found by trying [arXiv:1710.03740, section 3.2].

    Halved after a step that overflowed, down to `floor`; doubled after `patience` good steps in a row, up to `ceiling`.
    """

    level = logging.INFO         # an overflow is how it finds its value
    other_remedy = ''

    def __init__(self, value=2.0**16, patience=2000, floor=1.0, ceiling=2.0**24):
        super().__init__(value)
        self.patience, self.floor, self.ceiling = patience, floor, ceiling
        self.num_good = 0

    def _after_good_step(self):
        self.num_good += 1
        if self.num_good >= self.patience:
            self.value, self.num_good = min(self.value * 2, self.ceiling), 0

    def _after_overflow(self):
        self.value, self.num_good = max(self.value / 2, self.floor), 0

    def state(self):
        return dict(super().state(), value=self.value, num_good=self.num_good)

    def restore(self, state):
        super().restore(state)
        self.value, self.num_good = state.get('value', self.value), state.get('num_good', 0)


def make_loss_scale(setting):
    """fp16_scale as in the settings -> the scale, or None where it is 0, which is no half precision."""
    if setting == DYNAMIC:
        return DynamicScale()
    return ConstantScale(setting) if setting else None


def all_finite(gradients):
    """Whether the sum over devices of every gradient is sure to be finite; waits for the devices, once.

    gradients: per parameter a list of arrays, one per device. Float16 gradients are summed in float16, so each is
    looked at times the number of devices: if that is finite, so is the sum in any order.
    """
    flags = []
    for copies in zip(*gradients):                                   # device by device
        flag = mx.nd.ones((1,), ctx=copies[0].context)
        for dtype in sorted({array.dtype for array in copies}, key=str):         # one type per call
            same = [array for array in copies if array.dtype == dtype]
            for first in range(0, len(same), ARRAYS_PER_CHECK):
                mark_overflow([array if len(gradients[0]) == 1 else array * len(gradients[0])
                               for array in same[first:first + ARRAYS_PER_CHECK]], flag)
        flags.append(flag)
    return bool(mx.nd.add_n(*[flag.as_in_context(flags[0].context) for flag in flags]).asscalar() == len(flags))


def mark_overflow(arrays, flag):
    """flag (1,) becomes 0 if a number of the arrays, all of one type, is infinite or NaN."""
    mx.nd.multi_all_finite(*arrays, num_arrays=len(arrays), init_output=False, out=flag)
