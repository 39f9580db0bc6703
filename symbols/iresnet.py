"""IResNet [arXiv:2004.04989] as PyTorch face recognition has it: ir18 to ir200, for weights of such networks.

The function is that of fresnet with net_unit 3, but for the scale of images and the eps of batch norms. Names of
parameters are those of a PyTorch state dict by docs/networks.md.
"""
from common.errors import UsageError
from common.mxnet_loader import mx
from symbols.blocks import PIXEL_MEAN, Layers
from symbols.embedding import OutputOptions, embedding
from symbols.registry import register_backbone

UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3), 200: (6, 26, 60, 6)}
FILTERS = (64, 128, 256, 512)
EPS = 1e-5


@register_backbone('iresnet')
def iresnet(embedding_size=512, num_layers=50, net_output='E', net_act='prelu', bn_mom=0.9, dropout=0.4,
            dtype='float32', half_products=False, prelu='plain'):
    """num_layers: 18, 34, 50, 100 or 200.

    net_output, dropout: see symbols/embedding.py. net_act, bn_mom, dtype, half_products, prelu: see Layers in
    symbols/blocks.py.
    """
    if num_layers not in UNITS:
        raise UsageError('num_layers=%s: iresnet has %s' % (num_layers, ', '.join(map(str, UNITS))))
    layers = Layers(bn_mom, net_act, dtype, half_products, prelu)
    data = layers.halved((layers.images() - PIXEL_MEAN) * (1 / PIXEL_MEAN))
    data = layers.convolution(data, FILTERS[0], 3, pad=1, name='conv1')
    data = layers.activation(layers.batch_norm(data, 'bn0', EPS), FILTERS[0], 'prelu')
    for stage, (units, num_filter) in enumerate(zip(UNITS[num_layers], FILTERS), start=1):
        for unit in range(units):
            data = residual_unit(layers, data, num_filter, 'layer%d_%d' % (stage, unit), unit == 0)
    return embedding(layers, data, FILTERS[-1], OutputOptions(net_output, embedding_size, dropout, eps=EPS))


def residual_unit(layers, data, num_filter, name, halves):
    """(B, C, h, w) -> (B, num_filter, h', w'); h' = h / 2 and a convolved shortcut if it halves the map."""
    stride = 2 if halves else 1
    body = layers.batch_norm(data, name + '_bn1', EPS)
    body = layers.convolution(body, num_filter, 3, pad=1, name=name + '_conv1')
    body = layers.activation(layers.batch_norm(body, name + '_bn2', EPS), num_filter, name + '_prelu')
    body = layers.convolution(body, num_filter, 3, stride, pad=1, name=name + '_conv2')
    body = layers.batch_norm(body, name + '_bn3', EPS)
    if halves:
        data = layers.convolution(data, num_filter, 1, stride, name=name + '_downsample_0')
        data = layers.batch_norm(data, name + '_downsample_1', EPS)
    return mx.sym.elemwise_add(body, data, name=name + '_plus')
