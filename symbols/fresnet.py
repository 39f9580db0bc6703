"""Improved residual network of ArcFace [arXiv:1801.07698, section 3.2.1]: r18 to r100."""
from common.errors import UsageError
from common.mxnet_loader import mx
from symbols.blocks import Layers
from symbols.embedding import embedding
from symbols.registry import register_backbone

UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}    # per stage
FILTERS = (64, 128, 256, 512)
SE_REDUCTION = 16


@register_backbone('fresnet')
def fresnet(embedding_size=512, num_layers=50, net_output='E', net_act='prelu', net_se=0, net_unit=3, net_input=1,
            bn_mom=0.9, dtype='float32', half_products=False):
    """num_layers: 18, 34, 50 or 100. net_se 1: squeeze and excitation [arXiv:1709.01507] in every unit.

    net_unit 3: batch norm, convolution, batch norm, activation, convolution, batch norm. net_input 1: a 3x3
    convolution at full size, images scaled in the symbol.
    """
    if num_layers not in UNITS:
        raise UsageError('num_layers=%s: fresnet has %s' % (num_layers, ', '.join(map(str, UNITS))))
    if net_unit != 3 or net_input != 1:
        raise UsageError('net_unit=%s, net_input=%s: fresnet is built with net_unit 3 and net_input 1'
                         % (net_unit, net_input))
    layers = Layers(bn_mom, net_act, dtype, half_products)
    data = layers.images(mx.sym.Variable('data'))
    data = layers.convolution(data, FILTERS[0], 3, pad=1, name='conv0')
    data = layers.activation(layers.batch_norm(data, 'bn0'), 'relu0')
    for stage, (units, num_filter) in enumerate(zip(UNITS[num_layers], FILTERS), start=1):
        for unit in range(1, units + 1):
            data = residual_unit(layers, data, num_filter, 'stage%d_unit%d' % (stage, unit), unit == 1, net_se)
    return embedding(layers, data, net_output, embedding_size)


def residual_unit(layers, data, num_filter, name, halves, net_se):
    """(B, C, h, w) -> (B, num_filter, h', w'); h' = h / 2 and a convolved shortcut if it halves the map."""
    stride = 2 if halves else 1
    body = layers.convolution(layers.batch_norm(data, name + '_bn1'), num_filter, 3, pad=1, name=name + '_conv1')
    body = layers.activation(layers.batch_norm(body, name + '_bn2'), name + '_relu1')
    body = layers.convolution(body, num_filter, 3, stride, pad=1, name=name + '_conv2')
    body = layers.batch_norm(body, name + '_bn3')
    if net_se:
        body = squeeze_excite(layers, body, num_filter, name + '_se')
    if halves:
        data = layers.convolution(data, num_filter, 1, stride, name=name + '_conv1sc')
        data = layers.batch_norm(data, name + '_sc')
    return mx.sym.elemwise_add(body, data, name=name + '_plus')


def squeeze_excite(layers, data, num_filter, name):
    """Scale each channel by a gate computed from the means of all channels."""
    gate = mx.sym.Pooling(data, global_pool=True, kernel=(7, 7), pool_type='avg', name=name + '_pool1')
    gate = layers.convolution(gate, num_filter // SE_REDUCTION, 1, name=name + '_conv1')
    gate = layers.activation(gate, name + '_relu1')
    gate = layers.convolution(gate, num_filter, 1, name=name + '_conv2')
    return mx.sym.broadcast_mul(data, mx.sym.Activation(gate, act_type='sigmoid', name=name + '_sigmoid'))
