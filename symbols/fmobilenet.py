"""MobileNet [arXiv:1704.04861, table 1] for 112x112 faces: m1 (net_multiplier 1) and m05 (0.5)."""
from common.errors import UsageError
from symbols.blocks import Layers
from symbols.embedding import OutputOptions, embedding
from symbols.registry import register_backbone

EPS = 1e-3                  # of batch norm after convolutions, as in the published symbol
# widths in units of the first, and strides, of the blocks conv_2 to conv_14
BLOCKS = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *5 * ((16, 1),), (32, 2), (32, 1))
FIRST_FILTERS = 32
GDC_FILTERS = 512           # of output GDC, as published for every width; fewer where the network is narrower


@register_backbone('fmobilenet')
def fmobilenet(embedding_size=512, net_multiplier=1.0, net_input=1, net_output='GDC', net_act='prelu', bn_mom=0.9,
               dropout=0.4, dtype='float32', half_products=False, prelu='plain'):
    """net_multiplier: factor on all widths. net_input 0: the first convolution halves the image; 1: it does not.

    net_output, dropout: see symbols/embedding.py. net_act, bn_mom, dtype, half_products, prelu: see Layers in
    symbols/blocks.py. The factors (gamma) of batch norms after convolutions are fixed at 1.
    """
    first = int(FIRST_FILTERS * net_multiplier)
    if first < 1:
        raise UsageError('net_multiplier=%s: at least 1/%d' % (net_multiplier, FIRST_FILTERS))
    if net_input not in (0, 1):
        raise UsageError('net_input=%s: fmobilenet has 0 and 1' % net_input)
    layers = Layers(bn_mom, net_act, dtype, half_products, prelu)
    data = normed(layers, layers.scaled_images(), first, 3, 1 + (net_input == 0), 1, 'conv_1')
    channels = first
    for block, (factor, stride) in enumerate(BLOCKS, start=2):
        data = normed(layers, data, channels, 3, stride, channels, 'conv_%d_dw' % block)
        channels = factor * first
        data = normed(layers, data, channels, 1, 1, 1, 'conv_%d' % block)
    return embedding(layers, data, channels, OutputOptions(net_output, embedding_size, dropout,
                                                           gdc_filters=min(GDC_FILTERS, channels)))


def normed(layers, data, num_filter, kernel, stride, num_group, name):
    """Convolution, batch norm, activation."""
    data = layers.convolution(data, num_filter, kernel, stride, kernel // 2, num_group, name=name + '_conv2d')
    data = layers.batch_norm(data, name + '_batchnorm', eps=EPS, fix_gamma=True)
    return layers.activation(data, num_filter, name + '_relu')
