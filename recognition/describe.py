"""A network in numbers: its layers, parameters and multiply-adds, and the memory of one image in training.

Neither data nor devices are needed. Multiply-adds are those of convolutions and fully connected layers; biases, batch
norms, activations and sums are not counted. FLOPs of other tables are often twice the multiply-adds.
"""
from collections import OrderedDict, namedtuple

import numpy as np

from common.symbol_graph import VARIABLE, Graph
from recognition.backbone_memory import measure_backbone
from recognition.build_symbol import build_symbol, training_symbol
from recognition.devices import GPU

MB = 1 << 20
IMAGE_SHAPE = 112, 112, 3            # where neither a setting nor a data set says another
PRODUCTS = 'Convolution', 'FullyConnected'

# shape: of the output for one image, without the batch. parameters: numbers that are trained, counted with the first
# layer that takes them; running statistics of batch norms are none.
Layer = namedtuple('Layer', 'name operator shape parameters multiply_adds')

# parameters and multiply_adds: numbers. activations: bytes that one more image takes in training.
Totals = namedtuple('Totals', 'parameters multiply_adds activations')


def layers_of(symbol, image_shape):
    """[Layer] in order of a symbol, images 'data' (B, 3, H, W) -> embedding, as it is saved; image_shape (3, H, W)."""
    inner = symbol.get_internals()
    shapes = dict(zip(inner.list_outputs(), inner.infer_shape(data=(1,) + tuple(image_shape))[1]))
    counted, layers = {'data'}.union(symbol.list_auxiliary_states()), []
    for node in Graph.of(symbol).nodes:
        if node.op == VARIABLE:
            continue
        own = {one.name for one, _ in node.inputs if one.op == VARIABLE} - counted
        counted |= own
        shape = shapes[node.name + '_output'][1:]
        products = numbers(shape) * numbers(shapes[node.inputs[1][0].name][1:]) if node.op in PRODUCTS else 0
        layers.append(Layer(node.name, node.op, shape, sum(numbers(shapes[name]) for name in own), products))
    return layers


def numbers(shape):
    """How many an array of that shape holds."""
    return int(np.prod(shape, dtype=np.int64))


def network_of(cfg, get_backbone):
    """Complete configuration -> ([Layer], Totals). UsageError if the network cannot be built or take such images."""
    height, width, channels = cfg['image_shape'] or IMAGE_SHAPE
    image_shape = channels, height, width
    memory = measure_backbone(training_symbol(cfg, get_backbone, GPU), image_shape)
    layers = layers_of(build_symbol(cfg, get_backbone), image_shape)
    return layers, Totals(sum(layer.parameters for layer in layers), sum(layer.multiply_adds for layer in layers),
                          memory.activations)


def describe(cfg, get_backbone):
    """Lines: a table of all layers, one of the stages, layers whose maps have the same size, and the totals."""
    layers, totals = network_of(cfg, get_backbone)
    height, width, _ = cfg['image_shape'] or IMAGE_SHAPE
    titles = 'operator', 'output', 'parameters', 'multiply-adds'
    lines = [row('layer', *titles)]
    lines += [row(layer.name, layer.operator, size_of(layer.shape), layer.parameters, layer.multiply_adds)
              for layer in layers]
    lines += ['', row('stage', 'layers', *titles[1:])]
    lines += [row('maps of %s' % size if size else 'vectors', len(found), size_of(found[-1].shape),
                  sum(layer.parameters for layer in found), sum(layer.multiply_adds for layer in found))
              for size, found in stages(layers).items()]
    return lines + [
        '', '%s: %s, images of %dx%d, embedding of %d numbers' % (
            cfg['network'], cfg['net_name'], height, width, numbers(layers[-1].shape)),
        'parameters: %d' % totals.parameters,
        'FLOPs: %d multiply-adds per image, of convolutions and fully connected layers' % totals.multiply_adds,
        'activations in training: %.1f MB per image, %s; MB = 2**20 bytes' % (
            totals.activations / MB, 'half precision' if cfg['fp16'] else 'float32')]


def row(name, *cells):
    return '%-36s %-16s %12s %12s %14s' % ((name,) + cells)


def size_of(shape):
    """'64x112x112'"""
    return 'x'.join(map(str, shape))


def stages(layers):
    """{height x width, '' for vectors: [Layer]} in order; parameter free layers of the input are in the first."""
    found = OrderedDict()
    for layer in layers:
        found.setdefault(size_of(layer.shape[1:]), []).append(layer)
    return found
