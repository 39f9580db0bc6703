"""Events for TensorBoard, written by tensorboardX."""
import os

from common.errors import UserError

REMEDY = 'pip install tensorboardX, or leave out --tensorboard'


class Events:
    """TensorBoard's events; those of steps beyond the one that the training goes on after are hidden."""

    def __init__(self, folder, step):
        """UserError if tensorboardX is missing or the folder cannot be written."""
        writer = require_tensorboard()
        try:
            self._writer = writer(folder, purge_step=step + 1, filename_suffix='.after-%d' % step)
        except OSError as error:
            raise UserError('cannot write %s: %s' % (os.path.abspath(folder), error.strerror)) from None

    def write(self, line):
        for tag, value in scalars(line):
            self._writer.add_scalar(tag, value, line['step'], line['time'])
        self._writer.flush()

    def close(self):
        self._writer.close()


def require_tensorboard():
    """tensorboardX.SummaryWriter. UserError with the remedy."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise UserError('tensorboard needs tensorboardX (%s): %s' % (error, REMEDY)) from None
    return SummaryWriter


def scalars(line):
    """Yield (tag, number) of a line: train/loss, verification/lfw/accuracy, verification/lfw/tar_at_far/0.001."""
    if line['kind'] not in ('train', 'verification'):
        return
    folder = line['kind'] if line['kind'] == 'train' else '%s/%s' % (line['kind'], line['set'])
    for name, value in line.items():
        if isinstance(value, dict):
            yield from (('%s/%s/%s' % (folder, name, key), number) for key, number in value.items())
        elif isinstance(value, (int, float)) and name not in ('step', 'time'):
            yield '%s/%s' % (folder, name), value
