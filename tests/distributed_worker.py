"""What the processes of the jobs of test_distributed run:  python -m tests.distributed_worker NAME FOLDER"""
import json
import os
import pathlib
import sys

import numpy as np

import train_parall
from common.errors import UserError
from common.mxnet_loader import mx
from common.verification import VerificationSet, embed_pairs
from recognition.agreement import replacing_together
from recognition.batch_iter import FaceBatchIter
from recognition.collective import connect
from recognition.loss_scale import ConstantScale
from recognition.margin import AdaFaceMargin, ElasticMargin
from recognition.processes import find_place, run_in_job
from tests.make_sets import jpeg
from tests.tiny import SIZE, TinyIter, tiny_module
from tests.tiny_runs import tiny_run

GLOBAL_BATCH, STEPS = 12, 20
LEG = 6                              # steps of go_on
VARIANTS = {
    'fast': {}, 'lean': {'keep_logits': False}, 'partial': {'sample_ratio': 0.4}, 'half': {'loss_scale': 64.0},
    'fp16 exchange': {'fp16_exchange': True}, 'few classes': {'num_classes': 3, 'sample_ratio': 0.9},
    'adaface': {'margin': lambda: AdaFaceMargin(scale=16.0, momentum=0.8)},
    'elastic': {'margin': lambda: ElasticMargin(1, 0.4, 0.1, 16.0, 0.2, 0.05, seed=5)},
    'parts': {'accumulate': 3}, 'clipped': {'clip_norm': 0.5},
}


def steps_of(variant, num_devices, collective=None):
    """{name: array}: losses of 20 steps on global batches of 12, and what was learned by this process."""
    options = dict(VARIANTS[variant])
    if 'loss_scale' in options:
        options['loss_scale'] = ConstantScale(options['loss_scale'])
    if 'margin' in options:
        options['margin'] = options['margin']()
    rank, world_size = (collective.rank, collective.world_size) if collective else (0, 1)
    own = slice(rank * GLOBAL_BATCH // world_size, (rank + 1) * GLOBAL_BATCH // world_size)
    parts = options.get('accumulate', 1)
    module = tiny_module(num_devices, GLOBAL_BATCH // world_size // parts, collective=collective, **options)
    losses = []
    for batch in TinyIter(GLOBAL_BATCH, batches_per_epoch=STEPS):
        labels = batch.label[0] % module.head.num_classes
        batch = mx.io.DataBatch(cut(batch.data[0][own], parts), cut(labels[own], parts))
        losses.append(float(module.train_step(batch).loss().asscalar()))
    learned = {'losses': np.array(losses)}
    for block in (block for shard in module.head.shards for block in shard.blocks):
        learned['centers %d' % block.start] = block.weight.asnumpy()
    for name, array in module.backbone.parameters()[0].items():
        learned[name] = array.asnumpy()
    return learned


def cut(array, parts):
    """The rows as so many arrays."""
    size = len(array) // parts
    return [array[part * size:(part + 1) * size] for part in range(parts)]


def train(collective, folder):
    """All variants, one after the other."""
    num_devices = 4 // collective.world_size
    for variant in VARIANTS:
        np.savez(str(folder / ('%s-%d.npz' % (variant, collective.rank))), **steps_of(variant, num_devices, collective))


def names(collective, folder):
    """Counts of bytes and the identity of repeated names: two steps use the same names."""
    module = tiny_module(1, 6, collective=collective)
    batches = TinyIter(6, batches_per_epoch=2)
    sent = []
    for batch in batches:
        before = collective.sent_bytes
        module.train_step(batch).loss().wait_to_read()
        sent.append(collective.sent_bytes - before)
    (folder / ('sent-%d.txt' % collective.rank)).write_text(' '.join(map(str, sent)))


def fail_while_writing(collective, folder):
    """The last rank fails while all write a folder: it must not appear."""
    with replacing_together(folder / 'result', collective) as path:
        (path / ('part%d' % collective.rank)).write_text('here')
        if collective.rank == collective.world_size - 1:
            raise OSError(28, 'No space left on device')


def write_together(collective, folder):
    """Each rank writes its part of one folder."""
    with replacing_together(folder / 'result', collective) as path:
        (path / ('part%d' % collective.rank)).write_text('here')
    assert len(os.listdir(str(folder / 'result'))) == collective.world_size, 'a part is missing'


def go_on(collective, folder):
    """Resume FOLDER/run where the last leg ended, for LEG more steps of 12 images on four devices in all."""
    num_devices = 4 // collective.world_size
    begun = max([int(path.name[5:]) for path in (folder / 'run').glob('model-state/step-*')], default=0)
    tiny_run(folder / 'set', folder / 'run', num_devices, collective, per_batch_size=3, max_steps=begun + LEG,
             num_classes=None, resume='auto', net_name='plain')


def embeddings(num_devices, batch_size, collective=None):
    """(2, 14, D): of 7 pairs and of their mirror images. batch_size: of the process."""
    backbone = tiny_module(num_devices, batch_size, collective=collective).backbone
    pairs = VerificationSet('seven', [jpeg(number, (SIZE, SIZE)) for number in range(14)], [True, False] * 3 + [True])
    return np.stack(embed_pairs(pairs, backbone.embed, backbone.embed_batch_size, (SIZE, SIZE)))


def embed(collective, folder):
    """What every process knows of all pairs: 14 images, which batches of 4 for each process do not divide."""
    np.save(str(folder / ('embeddings-%d.npy' % collective.rank)), embeddings(1, 4, collective))


class Traced:
    """A collective that writes down which operations were called, by their names."""

    OPERATIONS = 'allgather', 'reduce_scatter_sum', 'allreduce_sum', 'broadcast', 'exchange', 'barrier'

    def __init__(self, collective):
        self._collective, self.calls = collective, []

    def __getattr__(self, attribute):
        found = getattr(self._collective, attribute)
        if attribute not in self.OPERATIONS:
            return found

        def call(*arguments):
            self.calls.append('%s %s' % (attribute, arguments[-1]))
            return found(*arguments)
        return call


def program(collective, folder):
    """The whole program with the flags of FOLDER/flags.json, in this job; writes what was called."""
    traced = Traced(collective)
    train_parall.connect = lambda place, wanted: traced
    code = train_parall.main(json.loads((folder / 'flags.json').read_text()))
    (folder / ('calls-%d.json' % collective.rank)).write_text(json.dumps(traced.calls))
    return code


def broken_reader(collective, folder):
    """The whole program, but the reader of the last rank fails at its fourth batch."""
    if collective.rank == collective.world_size - 1:
        whole, taken = FaceBatchIter.next, []

        def fail(images):
            taken.append(images)
            if len(taken) == 4:
                raise UserError('train.rec cannot be read any more')
            return whole(images)
        FaceBatchIter.next = fail
    return program(collective, folder)


CASES = {function.__name__: function for function in (
    train, names, fail_while_writing, write_together, go_on, embed, program, broken_reader)}


def main():
    joined = connect(find_place(os.environ))
    with joined.explaining():
        return CASES[sys.argv[1]](joined, pathlib.Path(sys.argv[2]))


if __name__ == '__main__':
    run_in_job(main, os.environ)
