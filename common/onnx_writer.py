"""An inference model as ONNX: one function for each operator that the networks use."""
import numpy as np

from common.errors import UserError
from common.files import replacing
from common.inference_model import difference, noise_images, sample_embeddings
from common.symbol_graph import VARIABLE, Graph
from common.version import VERSION

OPSET, IR_VERSION = 13, 8            # read by every onnxruntime since 1.10
TOLERANCE = 1e-3                     # between MXNet and onnxruntime, relative to the length of an embedding
BATCH = 'batch'                      # the name of the free dimension


def import_onnx():
    """The package onnx. UserError with the remedy where it is missing."""
    try:
        import onnx
    except ImportError as error:
        raise UserError('ONNX needs the package onnx (%s): pip install "onnx<1.19"' % error) from None
    return onnx


class OnnxGraph:
    """Nodes and constants of a graph that is being built. Tensors are named NODE_output."""

    def __init__(self, onnx):
        self.onnx, self.nodes, self.constants = onnx, [], []

    def constant(self, name, array):
        """Add a constant; returns its name."""
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, operator, node, inputs, part='', **attributes):
        """Add an ONNX node for a node of the symbol, or a part of it; returns the name of its output."""
        name = node.name + part
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name + '_output'], name=name, **attributes))
        return name + '_output'


def refuse(node, reason):
    raise UserError('ONNX: %s %s: %s' % (node.op, node.name, reason))


def cast(graph, node, data):
    return graph.add('Cast', node, [data], to=graph.onnx.TensorProto.FLOAT)


def scalar(operator):
    """x op number"""
    def convert(graph, node, data):
        number = np.float32(node.get('scalar', 0))
        return graph.add(operator, node, [data, graph.constant(node.name + '_scalar', number)])
    return convert


def convolution(graph, node, *inputs):
    if node.attributes.get('layout', 'None') not in ('None', 'NCHW'):
        refuse(node, 'layout %s' % node.attributes['layout'])
    kernel, pad = node.get('kernel', None), node.get('pad', [0, 0])
    return graph.add('Conv', node, inputs, kernel_shape=kernel, strides=node.get('stride', [1, 1]), pads=pad + pad,
                     dilations=node.get('dilate', [1, 1]), group=node.get('num_group', 1))


def batch_norm(graph, node, *inputs):
    if node.get('axis', 1) != 1:
        refuse(node, 'axis %d' % node.get('axis', 1))
    return graph.add('BatchNormalization', node, inputs, epsilon=node.get('eps', 1e-3))


def activation(graph, node, data):
    kinds = {'relu': 'Relu', 'sigmoid': 'Sigmoid'}
    if node.attributes['act_type'] not in kinds:
        refuse(node, 'act_type %s' % node.attributes['act_type'])
    return graph.add(kinds[node.attributes['act_type']], node, [data])


def prelu(graph, node, data, *slope):
    if node.attributes.get('act_type') != 'prelu':
        refuse(node, 'act_type %s' % node.attributes.get('act_type', 'leaky'))
    shape = graph.constant(node.name + '_shape', np.array([-1, 1, 1], np.int64))              # one per channel of a map
    return graph.add('PRelu', node, [data, graph.add('Reshape', node, [slope[0], shape], '_slope')])


def pooling(graph, node, data):
    if not node.get('global_pool', False) or node.attributes.get('pool_type') != 'avg':
        refuse(node, 'only the mean over the whole map (global_pool=True, pool_type=avg)')
    return graph.add('GlobalAveragePool', node, [data])


def flatten(graph, node, data):
    return graph.add('Flatten', node, [data], axis=1)


def fully_connected(graph, node, data, *parameters):
    if not node.get('flatten', True):
        refuse(node, 'flatten=False')
    flat = graph.add('Flatten', node, [data], '_flat', axis=1)
    return graph.add('Gemm', node, (flat,) + parameters, transB=1)


def binary(operator):
    def convert(graph, node, left, right):
        return graph.add(operator, node, [left, right])
    return convert


CONVERTERS = {
    'Cast': cast, '_minus_scalar': scalar('Sub'), '_mul_scalar': scalar('Mul'), 'Convolution': convolution,
    'BatchNorm': batch_norm, 'Activation': activation, 'LeakyReLU': prelu, 'Pooling': pooling, 'Flatten': flatten,
    'FullyConnected': fully_connected, 'elemwise_add': binary('Add'), 'broadcast_mul': binary('Mul'),
}


def to_onnx(model, size):
    """A SavedModel, as inference_model() gives it, -> ModelProto.

    Input `data` (batch, 3, h, w) float32, 0 to 255, R, G, B, for size (h, w) and any batch; output, named as in MXNet,
    (batch, D) float32. UserError names an operator that is not known.
    """
    onnx, graph, shapes = import_onnx(), Graph.of(model.symbol), model.infer(size)
    built, saved = OnnxGraph(onnx), dict(model.parameters, **model.statistics)
    names = {}                                                 # id of a node of the symbol -> name of its tensor
    for node in graph.nodes:
        if node.op == VARIABLE:
            names[id(node)] = node.name if node.name == 'data' else built.constant(node.name, saved[node.name])
        elif node.op in CONVERTERS:
            names[id(node)] = CONVERTERS[node.op](built, node, *(names[id(one)] for one, _ in node.inputs))
        else:
            refuse(node, 'no such operator is known here; known are %s' % ', '.join(sorted(CONVERTERS)))
    output = names[id(graph.output[0])]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [BATCH] + list(shape[1:]))
            for name, shape in (('data', shapes['data']), (output, shapes[model.symbol.list_outputs()[0]]))]
    content = onnx.helper.make_graph(built.nodes, 'embedding', ends[:1], ends[1:], built.constants)
    proto = onnx.helper.make_model(content, producer_name='shardface', producer_version=VERSION,
                                   ir_version=IR_VERSION, opset_imports=[onnx.helper.make_opsetid('', OPSET)])
    onnx.checker.check_model(proto, full_check=True)
    return proto


def write_onnx(path, model, size):
    """Write to_onnx(); returns how far onnxruntime is from MXNet on noise images, None where it is not installed.

    UserError if it is further than TOLERANCE: nothing is written.
    """
    content = to_onnx(model, size).SerializeToString()
    found = run_onnx(content, noise_images(size))
    distance = None if found is None else difference(found, sample_embeddings(model, size))
    if distance is not None and not distance <= TOLERANCE:
        raise UserError('onnxruntime differs from MXNet by %.1e of the length of an embedding, %.0e is allowed; '
                        'not written: %s' % (distance, TOLERANCE, path))
    with replacing(path) as partial:
        partial.write_bytes(content)
    return distance


def run_onnx(content, images):
    """Embeddings that onnxruntime computes on the CPU with a serialised model, None where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=['CPUExecutionProvider'])
    return session.run(None, {session.get_inputs()[0].name: images})[0]
