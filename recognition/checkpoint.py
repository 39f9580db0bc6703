"""What is kept of a training: the backbone as MXNet knows it, and the head by class range.

PREFIX-symbol.json, PREFIX-NNNN.params    backbone for mx.model.load_checkpoint, float32
PREFIX-NNNN.head/                         NAME-START-STOP.npy per shard, plain NumPy files: NAME is centers
                                          or momentum, (STOP - START, D) float32, with J sub-centers
                                          (STOP - START, J, D), or bias, bias_momentum, (STOP - START,) float32;
                                          START and STOP are class ids
Everything is written under a temporary name and renamed when it is complete.
"""
import logging
import pathlib

import numpy as np

from common.class_rows import class_file, load_head_range
from common.errors import UserError
from common.files import clear_leftovers, replacing
from common.mxnet_loader import mx
from recognition.agreement import replacing_together

log = logging.getLogger('shardface')


def params_path(prefix, number):
    return pathlib.Path('%s-%04d.params' % (prefix, number))


def head_folder(prefix, number):
    return pathlib.Path('%s-%04d.head' % (prefix, number))


def save_backbone(prefix, number, symbol, arg_params, aux_params):
    """Write PREFIX-symbol.json and PREFIX-NNNN.params; float16 parameters become float32."""
    named = {'arg:' + name: array for name, array in arg_params.items()}
    named.update({'aux:' + name: array for name, array in aux_params.items()})
    with replacing('%s-symbol.json' % prefix) as path:
        path.write_text(symbol.tojson(), encoding='utf-8')
    with replacing(params_path(prefix, number)) as path:
        try:
            mx.nd.save(str(path), {name: array.astype('float32', copy=False) for name, array in named.items()})
        except mx.MXNetError as error:
            raise UserError('cannot write %s: %s' % (path, str(error).strip().splitlines()[-1])) from None


def save_head(prefix, number, head):
    """Write this process's shards, one file per array, block by block: no second copy of a shard.

    The folder is there when all processes have written theirs.
    """
    with replacing_together(head_folder(prefix, number), head.collective) as folder:
        write_head(head, lambda name: open(str(folder / name), 'wb'))


def write_head(head, create):
    """Write this process's shards block by block. create: name of a file -> context that gives its stream."""
    for shard in head.shards:
        if shard.blocks:
            write_shard(shard, create)


def write_shard(shard, create):
    start, stop = shard.blocks[0].start, shard.blocks[-1].stop
    for name in shard.blocks[0].arrays():
        header = {'descr': '<f4', 'fortran_order': False, 'shape': (stop - start,) + shard.blocks[0].row_shape(name)}
        with create(class_file(name, start, stop)) as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for block in shard.blocks:
                for first, last in block.row_ranges(name):
                    stream.write(block.rows(name, first, last).data)


def load_head(folder, head):
    """Fill the shards of this process from a head folder."""
    for shard in head.shards:
        for block in shard.blocks:
            for name in block.arrays():
                load_rows(folder, name, block)


def load_rows(folder, name, block):
    """Fill one array of a block, some megabytes at a time."""
    for first, last in block.row_ranges(name):
        rows = load_head_range(folder, name, block.start + first, block.start + last)
        check_row_shape(folder, name, rows.shape[1:], block.row_shape(name))
        block.set_rows(name, rows, first)


def check_row_shape(folder, name, saved, needed):
    """UserError unless a class has as many sub-centers and numbers as are needed."""
    if saved == needed:
        return
    if saved[-1:] == needed[-1:]:
        counts = [shape[0] if len(shape) == 2 else 1 for shape in (saved, needed)]
        raise UserError('%s was saved with %d sub-centers per class, this training has %d: set sub_centers = %d'
                        % (folder, counts[0], counts[1], counts[0]))
    raise UserError('%s: %s of shape %s for a class where %s is needed (another embedding size)'
                    % (folder, name, saved, needed))


class CheckpointRule:
    """When --ckpt saves, and under which number.

    0  never
    1  PREFIX-0001, -0002 ... whenever the verification accuracy is the best so far, and at the end
    2  PREFIX-0001, -0002 ... after every verification, and at the end
    3  two slots, overwritten: PREFIX-0000 is the last, PREFIX-0001 the best
    Without a verification set every save counts as the best.
    """

    def __init__(self, ckpt):
        self.ckpt, self.best, self.count = ckpt, None, 0

    def numbers(self, accuracy, final=False):
        """Numbers to save under now; accuracy is None where nothing was verified."""
        is_best = accuracy is None or self.best is None or accuracy > self.best
        if is_best and accuracy is not None:
            self.best = accuracy
        if self.ckpt == 0:
            return []
        if self.ckpt == 3:
            return [0, 1] if is_best else [0]
        if not (is_best or final or self.ckpt == 2):
            return []
        self.count += 1
        return [self.count]

    def state(self):
        """Plain numbers for a training state."""
        return {'best': self.best, 'count': self.count}

    def restore(self, state):
        """Go on from state()."""
        self.best, self.count = state['best'], state['count']


class Checkpoints:
    """Saves a ParallModule as a CheckpointRule says."""

    def __init__(self, prefix, symbol, rule):
        """symbol: the float32 inference symbol that is saved beside the parameters."""
        self.prefix, self.symbol, self.rule = prefix, symbol, rule

    def save(self, module, accuracy, final=False):
        """Save now if the rule says so. Returns the numbers written. Rank 0 writes the backbone and decides."""
        collective = module.head.collective
        numbers = collective.exchange(self.rule.numbers(accuracy, final), 'checkpoint_numbers')[0]
        if collective.rank == 0:
            clear_leftovers(pathlib.Path(self.prefix).parent, pathlib.Path(self.prefix).name + '-')
        for number in numbers:
            if collective.rank == 0:
                save_backbone(self.prefix, number, self.symbol, *module.backbone.parameters())
            save_head(self.prefix, number, module.head)
            log.info('saved %s', params_path(self.prefix, number))
        return numbers
