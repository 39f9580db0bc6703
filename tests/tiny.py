"""A training small enough for tests: random images, a network without batch statistics, a sharded head."""
import numpy as np

from common.mxnet_loader import mx
from recognition.backbone import Backbone
from recognition.collective import LocalCollective
from recognition.margin import Margin
from recognition.optimizer import MultiStepSchedule, SolverOptions
from recognition.parall_module import Head, ParallModule
from symbols.blocks import Layers

NUM_CLASSES, SIZE, EMBEDDING = 23, 12, 16


def tiny_symbol():
    """Images (B, 3, 12, 12) -> fc1 (B, 16): no layer looks at more than one image."""
    data = (mx.sym.Cast(mx.sym.Variable('data'), dtype='float32') - 127.5) * 0.0078125
    data = mx.sym.Convolution(data, num_filter=8, kernel=(3, 3), stride=(2, 2), no_bias=True, name='conv')
    data = mx.sym.Activation(data, act_type='relu')
    return mx.sym.FullyConnected(data, num_hidden=EMBEDDING, name='fc1')


def half_symbol():
    """The same network in half precision, as it is computed on CPUs."""
    layers = Layers(dtype='float16', net_act='relu')
    data = layers.convolution(layers.scaled_images(), 8, 3, 2, name='conv')
    return layers.fully_connected(layers.activation(data, 8, 'relu'), EMBEDDING, 'fc1', 'fc1_weight')


def tiny_module(num_devices=1, batch_size=12, seed=0, lr=0.02, lr_steps=(), margin=(1, 0.5, 0), keep_logits=True,
                loss_scale=None, kvstore='device', num_classes=NUM_CLASSES, collective=None, clip_norm=0.0,
                accumulate=1, **options):
    """batch_size: of the process. loss_scale: of half precision; None for float32. collective: None for one process.

    margin: Margin, or (m1, m2, m3) of one. options: of Head.initial.
    """
    margin = margin if isinstance(margin, Margin) else Margin(*margin, scale=16.0)
    collective = collective or LocalCollective()
    contexts = [mx.cpu(device) for device in range(num_devices)]
    solver = SolverOptions(MultiStepSchedule(lr, lr_steps), clip_norm=clip_norm)
    backbone = Backbone(half_symbol() if loss_scale else tiny_symbol(), contexts, batch_size, (3, SIZE, SIZE), seed,
                        collective, accumulate)
    backbone.take_first()
    backbone.init_optimizer(solver, kvstore, loss_scale)
    head = Head.initial(num_classes, EMBEDDING, contexts, margin, seed, collective,
                        block_size=5, keep_logits=keep_logits, **options)
    return ParallModule(backbone, head, solver)


class TinyIter(mx.io.DataIter):
    """Batches that depend on the seed and their number only; each class has a colour."""

    def __init__(self, batch_size=12, batches_per_epoch=5, seed=0):
        super().__init__(batch_size)
        self.batches_per_epoch, self.seed, self.epoch, self.wait_seconds = batches_per_epoch, seed, 0, 0.0
        self._number = 0

    def reset(self):
        self.epoch, self._number = self.epoch + 1, 0

    def state(self):
        return {'epoch': self.epoch, 'batch': self._number}

    def restore(self, state):
        self.epoch, self._number = state['epoch'], state['batch']

    def next(self):
        if self._number == self.batches_per_epoch:
            raise StopIteration
        rng = np.random.RandomState([self.seed, self.epoch, self._number])
        self._number += 1
        labels = rng.randint(0, NUM_CLASSES, self.batch_size)
        colours = np.random.RandomState(99).randint(0, 256, (NUM_CLASSES, 3, SIZE, SIZE))
        images = np.clip(colours[labels] + rng.randint(-20, 21, colours[labels].shape), 0, 255)
        return mx.io.DataBatch([mx.nd.array(images, dtype='uint8')], [mx.nd.array(labels, dtype='int64')])
