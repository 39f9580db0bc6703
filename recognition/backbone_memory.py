"""How much memory a network needs on a device: asked of MXNet's own memory planner, without allocating any of it."""
import re
from collections import namedtuple

import numpy as np

from common.errors import UsageError
from common.mxnet_loader import mx

FLOAT = 4                # bytes of a float32
PROBES = 16, 64          # images: the planner tells whole MB; its figures grow with the batch in a straight line
HALF_ON_CPU = 2.15       # measured: maps of float16 are cast around each product, and oneDNN keeps copies of its own

# Bytes. parameters: as stored and computed with; float32: the same as float32; masters: float32 copies that half
# precision keeps beside its float16 ones; auxiliary: running statistics; fixed: work space whatever the batch. Per
# image: activations, all maps that live at the same time in training, and largest, the largest map.
BackboneMemory = namedtuple('BackboneMemory', 'parameters float32 masters auxiliary fixed activations largest')


def measure_backbone(symbol, image_shape, copies=1.0):
    """symbol: images 'data' (B, 3, H, W) uint8 -> embedding, as it is trained; image_shape (3, H, W).

    copies: how often maps are there, HALF_ON_CPU or 1. UsageError if the network cannot take images of that size.
    """
    image_shape = tuple(image_shape)
    try:
        shapes, _, aux_shapes = symbol.infer_shape_partial(data=(1,) + image_shape)     # prints nothing if it fails
    except mx.MXNetError as error:
        layer = re.search(r'operator ([\w.-]+)', str(error))
        raise UsageError('image_shape: the network cannot take images of %dx%d%s' % (
            image_shape[1:] + (', its layer %s is too large' % layer.group(1) if layer else '',))) from None
    types, _, aux_types = symbol.infer_type(data='uint8')
    own = [(shape, dtype) for name, shape, dtype in zip(symbol.list_arguments(), shapes, types) if name != 'data']
    half = [size(shape, np.float32) for shape, dtype in own if np.dtype(dtype).itemsize < FLOAT]
    maps = layer_outputs(symbol, image_shape)
    # the planner counts every number with four bytes; what is allocated then has the size of its type
    share = sum(size(*one) for one in maps) / sum(size(shape, np.float32) for shape, _ in maps)
    few, many = (planned_bytes(symbol, (number,) + image_shape) * share for number in PROBES)
    slope = (many - few) / (PROBES[1] - PROBES[0])
    return BackboneMemory(sum(size(*one) for one in own), sum(size(shape, np.float32) for shape, _ in own), sum(half),
                          sum(map(size, aux_shapes, aux_types)), max(0, int(few - slope * PROBES[0])),
                          int(slope * copies), max(size(*one) for one in maps))


def size(shape, dtype):
    """Bytes of an array."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def planned_bytes(symbol, shape):
    """Bytes that an executor plans besides its arguments: bind it to arrays whose memory is never asked for."""
    shapes, _, aux_shapes = symbol.infer_shape(data=shape)
    types, _, aux_types = symbol.infer_type(data='uint8')
    requests = ['null' if name == 'data' else 'write' for name in symbol.list_arguments()]
    executor = symbol.bind(mx.cpu(), list(map(unallocated, shapes, types)), grad_req=requests,
                           args_grad=list(map(unallocated, shapes, types)),
                           aux_states=list(map(unallocated, aux_shapes, aux_types)))
    return int(re.search(r'Total (\d+) MB allocated', executor.debug_str()).group(1)) << 20


def unallocated(shape, dtype):
    """An array that gets its memory when it is first written."""
    return mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(shape, mx.cpu(), True, dtype))


def layer_outputs(symbol, image_shape):
    """[(shape, type)] of the maps of one image: outputs of layers that grow with the batch."""
    inner = symbol.get_internals()
    one, two = (inner.infer_shape(data=(number,) + image_shape)[1] for number in (1, 2))
    found = zip(inner.list_outputs(), one, two, inner.infer_type(data='uint8')[1])
    return [(shape, dtype) for name, shape, other, dtype in found if shape != other and name.endswith('_output')]
