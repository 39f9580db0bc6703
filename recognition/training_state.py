"""A training -> its state on disk, and back. What the files hold is described in docs/checkpoints.md."""
import collections
import datetime
import logging
import math
import platform
import time

import numpy as np

from common.array_files import open_arrays
from common.errors import UserError
from common.mxnet_loader import mx
from common.version import VERSION
from recognition.checkpoint import load_head, write_head
from recognition.loss_scale import all_finite
from recognition.state_files import DamagedState, StateWriter

log = logging.getLogger('shardface')

BACKBONE, HEAD = 'backbone.npz', 'head'
NOT_FINITE = ('%s is not finite after step %d: training stopped, this state was not saved; lower --lr and resume from '
              'an earlier one')
MEGABYTE = 1e6
BYTES_PER_SECOND = 1e8               # of saving, before it was measured


def write_state(folder, trainer, cfg):
    """Write the state of a Trainer into a folder that is there; returns the number of bytes.

    Each process writes its classes, rank 0 the rest.
    Numbers that are not finite are not saved: UserError.
    """
    writer, step, collective = StateWriter(folder), trainer.module.num_update, trainer.module.head.collective
    arrays = finite(trainer.module.backbone.training_arrays(), step)
    if collective.rank == 0:
        writer.arrays(BACKBONE, arrays)
    else:
        collections.deque(arrays, maxlen=0)
    check_centers(trainer.module.head, step)
    write_head(trainer.module.head, lambda name: writer.create('%s/%s' % (HEAD, name)))
    files = collective.exchange(writer.files, 'state_files')
    if collective.rank == 0:
        writer.finish(facts(trainer, cfg), {name: entry for part in files for name, entry in part.items()})
    return sum(entry['bytes'] for part in files for entry in part.values())


def finite(arrays, step):
    """Pass on (name, array) pairs, all of whose numbers are finite."""
    for name, array in arrays:
        if not np.isfinite(array).all():
            raise UserError(NOT_FINITE % (name, step))
        yield name, array


def check_centers(head, step):
    for shard in head.shards:
        if shard.blocks and not all_finite([[array] for block in shard.blocks for array in block.arrays().values()]):
            raise UserError(NOT_FINITE % ('a class center', step))


def facts(trainer, cfg):
    """Everything of the state that is not an array, for JSON."""
    module = trainer.module
    scale = module.backbone.loss_scale
    return {
        'num_update': module.num_update,
        'verified_at': trainer.verified_at,
        'reader': trainer.train_iter.state(),
        'checkpoints': trainer.checkpoints.rule.state(),
        'loss_scale': None if scale is None else scale.state(),
        'margin': None if module.head.margin is None else module.head.margin.state(),
        'classes': {'num_classes': module.head.num_classes, 'embedding_size': module.backbone.embedding_size,
                    'label_dtype': 'int64', 'order': 'row i of a file NAME-START-STOP.npy is of class START + i'},
        'config': dict(cfg),
        'versions': versions(),
        'saved_at': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
    }


def versions():
    """{what: version} of what the numbers of a training depend on."""
    return {'shardface': VERSION, 'mxnet': mx.__version__, 'numpy': np.__version__,
            'python': platform.python_version()}


def restore_state(folder, manifest, trainer):
    """Bring a Trainer, built from a configuration of the same network and classes, to a state. UserError."""
    module = trainer.module
    with open_arrays(folder / BACKBONE) as arrays:
        module.backbone.restore(arrays)
    load_head(folder / HEAD, module.head)
    try:
        if manifest['loss_scale'] is not None and module.backbone.loss_scale is not None:
            module.backbone.loss_scale.restore(manifest['loss_scale'])
        if module.head.margin is not None:
            module.head.margin.restore(manifest.get('margin'))                 # older states do not have it
        module.num_update = int(manifest['num_update'])
        trainer.verified_at = manifest['verified_at']
        trainer.checkpoints.rule.restore(manifest['checkpoints'])
        trainer.train_iter.restore(manifest['reader'])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DamagedState('the manifest of %s is damaged: %s %s' % (folder, type(error).__name__, error)) from None


class SaveRule:
    """Which steps are followed by a save."""

    def __init__(self, every, clock=time.monotonic):
        """every: steps, a whole number, 0 for never; or minutes since the last save, a text such as '30m'."""
        minutes = isinstance(every, str)
        self.steps = math.inf if minutes or not every else every
        self._seconds = 60 * float(every[:-1]) if minutes else math.inf
        self.saves = bool(every)
        self._clock, self._last = clock, clock()

    def is_due(self, step):
        return step % self.steps == 0 or self._clock() - self._last >= self._seconds

    def saved(self):
        self._last = self._clock()


class StateSaver:
    """Saves the states of a Trainer to a StateFolder when a SaveRule says so, or the training ends."""

    def __init__(self, folder, rule, cfg, stop):
        """cfg: saved with each state. stop: Stop; it learns how long a save lasts."""
        self.folder, self.rule, self._cfg, self._stop = folder, rule, cfg, stop
        self._saved_at = None                        # step

    def begin(self, trainer, found=None):
        """found: the state that was resumed from, of StateFolder.find."""
        self.folder.begin(found)
        self._saved_at = trainer.module.num_update
        if self.rule.saves:
            self._stop.reserve = 2 * state_size(trainer.module) / BYTES_PER_SECOND

    def is_due(self, step):
        """Rank 0 decides for all."""
        return self.folder.collective.exchange(self.rule.is_due(step), 'save_due')[0]

    def save(self, trainer):
        """Save, unless this step is saved already; says time and size."""
        step = trainer.module.num_update
        if not self.rule.saves or step == self._saved_at:
            return
        begin, sizes = time.monotonic(), []
        path = self.folder.write(step, lambda folder: sizes.append(write_state(folder, trainer, self._cfg)),
                                 state_size(trainer.module))
        seconds = time.monotonic() - begin
        self._saved_at, self._stop.reserve = step, 2 * seconds
        self.rule.saved()
        log.info('saved training state %s: %.1f MB in %.2f s', path, sizes[0] / MEGABYTE, seconds)


def state_size(module):
    """Bytes of the arrays of a state, about."""
    blocks = [block for shard in module.head.shards for block in shard.blocks]
    head = sum(array.size for block in blocks for array in block.arrays().values())
    return 4 * (head + 2 * module.backbone.num_parameters)
