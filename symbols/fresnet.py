"""Improved residual network of ArcFace [arXiv:1801.07698, section 3.2.1]: r18 to r200."""
from common.errors import UsageError
from common.mxnet_loader import mx
from symbols.blocks import Layers
from symbols.embedding import OutputOptions, embedding
from symbols.registry import register_backbone

UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3), 124: (3, 13, 40, 5),
         152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}       # per stage; all of two 3x3 convolutions, whatever the name
FILTERS = (64, 128, 256, 512)
SE_REDUCTION = 16


@register_backbone('fresnet')
def fresnet(embedding_size=512, num_layers=50, net_output='E', net_act='prelu', net_se=0, net_unit=3, net_input=1,
            bn_mom=0.9, dropout=0.4, dtype='float32', half_products=False, prelu='plain'):
    """num_layers: 18, 34, 50, 100, 124, 152 or 200.

    net_se 1: squeeze and excitation [arXiv:1709.01507] in every unit. net_unit 3: batch norm, convolution, batch
    norm, activation, convolution, batch norm. net_input: see first_layers. net_output, dropout: see
    symbols/embedding.py. net_act, bn_mom, dtype, half_products, prelu: see Layers in symbols/blocks.py.
    """
    if num_layers not in UNITS:
        raise UsageError('num_layers=%s: fresnet has %s' % (num_layers, ', '.join(map(str, UNITS))))
    if net_unit != 3:
        raise UsageError('net_unit=%s: fresnet is built of net_unit 3' % net_unit)
    layers = Layers(bn_mom, net_act, dtype, half_products, prelu)
    data = first_layers(layers, net_input)
    for stage, (units, num_filter) in enumerate(zip(UNITS[num_layers], FILTERS), start=1):
        for unit in range(1, units + 1):
            data = residual_unit(layers, data, num_filter, 'stage%d_unit%d' % (stage, unit), unit == 1, net_se)
    return embedding(layers, data, FILTERS[-1], OutputOptions(net_output, embedding_size, dropout))


def first_layers(layers, net_input):
    """Images -> (B, 64, h, w).

    net_input 0: scaled to about -1..1, a 7x7 convolution at half size
              1: scaled to about -1..1, a 3x3 convolution at full size
              2: scaled by a batch norm, a 3x3 convolution at full size
    """
    if net_input not in (0, 1, 2):
        raise UsageError('net_input=%s: fresnet has 0, 1 and 2' % net_input)
    if net_input == 2:
        data = layers.halved(layers.batch_norm(layers.images(), 'bn_data', fix_gamma=True))
    else:
        data = layers.scaled_images()
    kernel, stride = (7, 2) if net_input == 0 else (3, 1)
    data = layers.convolution(data, FILTERS[0], kernel, stride, pad=kernel // 2, name='conv0')
    return layers.activation(layers.batch_norm(data, 'bn0'), FILTERS[0], 'relu0')


def residual_unit(layers, data, num_filter, name, halves, net_se):
    """(B, C, h, w) -> (B, num_filter, h', w'); h' = h / 2 and a convolved shortcut if it halves the map."""
    stride = 2 if halves else 1
    body = layers.convolution(layers.batch_norm(data, name + '_bn1'), num_filter, 3, pad=1, name=name + '_conv1')
    body = layers.activation(layers.batch_norm(body, name + '_bn2'), num_filter, name + '_relu1')
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
    gate = layers.convolution(gate, num_filter // SE_REDUCTION, 1, has_bias=True, name=name + '_conv1')
    gate = layers.activation(gate, num_filter // SE_REDUCTION, name + '_relu1')
    gate = layers.convolution(gate, num_filter, 1, has_bias=True, name=name + '_conv2')
    return mx.sym.broadcast_mul(data, mx.sym.Activation(gate, act_type='sigmoid', name=name + '_sigmoid'))
