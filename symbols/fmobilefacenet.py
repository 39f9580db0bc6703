"""MobileFaceNet [arXiv:1804.07573, table 1]: y1 (blocks 1, 4, 6, 2) and y2 (blocks 2, 8, 16, 4)."""
from common.errors import UsageError
from common.mxnet_loader import mx
from symbols.blocks import Layers
from symbols.embedding import OutputOptions, embedding
from symbols.registry import register_backbone

EPS = 1e-3                  # of batch norm after convolutions, as in the published models
EMBEDDING_WD_MULT = 10.0    # weight decay of the embedding layer [section 3.2: 4e-4 against 4e-5]
LAST_FILTERS = 512


@register_backbone('fmobilefacenet')
def fmobilefacenet(embedding_size=128, net_blocks=(1, 4, 6, 2), net_multiplier=1.0, net_output='GDC',
                   net_act='prelu', bn_mom=0.9, dropout=0.4, dtype='float32', half_products=False, prelu='plain'):
    """net_blocks: units at 1/2, 1/4, 1/8 and 1/16 of the image size. net_multiplier: factor on all widths.

    net_output, dropout: see symbols/embedding.py. net_act, bn_mom, dtype, half_products, prelu: see Layers in
    symbols/blocks.py.
    """
    if len(net_blocks) != 4 or net_blocks[0] < 1:
        raise UsageError('net_blocks=%s: four numbers, the first at least 1' % (net_blocks,))
    net = MobileLayers(Layers(bn_mom, net_act, dtype, half_products, prelu), net_multiplier)
    data = net.layers.scaled_images()
    data = net.convolution(data, 64, 3, 2, name='conv_1')
    if net_blocks[0] == 1:
        data = net.convolution(data, 64, 3, grouped=True, name='conv_2_dw')
    else:
        data = net.residual(data, net_blocks[0], 64, 64, 'res_2')
    for stage, (num_filter, reducing, widening) in enumerate([(64, 128, 128), (128, 256, 256), (128, 512, 256)], 3):
        data = net.bottleneck(data, num_filter, reducing, 'dconv_%d%d' % (stage - 1, stage), stride=2)
        data = net.residual(data, net_blocks[stage - 2], num_filter, widening, 'res_%d' % stage)
    data = net.convolution(data, LAST_FILTERS, 1, name='conv_6sep')
    return embedding(net.layers, data, net.width(LAST_FILTERS),
                     OutputOptions(net_output, embedding_size, dropout, 'fc1_weight', EMBEDDING_WD_MULT))


class MobileLayers:
    """The building blocks, all widths times one factor."""

    def __init__(self, layers, multiplier):
        self.layers, self.multiplier = layers, multiplier

    def width(self, num_filter):
        return max(1, int(num_filter * self.multiplier))

    def convolution(self, data, num_filter, kernel, stride=1, grouped=False, name=None, active=True):
        """Convolution (depthwise if grouped), batch norm and, if active, the activation."""
        num_filter = self.width(num_filter)
        data = self.layers.convolution(data, num_filter, kernel, stride, pad=kernel // 2,
                                       num_group=num_filter if grouped else 1, name=name + '_conv2d')
        data = self.layers.batch_norm(data, name + '_batchnorm', eps=EPS)
        return self.layers.activation(data, num_filter, name + '_relu') if active else data

    def bottleneck(self, data, num_filter, num_wide, name, stride=1):
        """Widen to num_wide, depthwise 3x3, project to num_filter without activation."""
        data = self.convolution(data, num_wide, 1, name=name + '_conv_sep')
        data = self.convolution(data, num_wide, 3, stride, grouped=True, name=name + '_conv_dw')
        return self.convolution(data, num_filter, 1, name=name + '_conv_proj', active=False)

    def residual(self, data, num_blocks, num_filter, num_wide, name):
        """num_blocks bottlenecks, each added to its input."""
        for block in range(num_blocks):
            block_name = '%s_block%d' % (name, block)
            data = mx.sym.elemwise_add(self.bottleneck(data, num_filter, num_wide, block_name), data,
                                       name=block_name + '_plus')
        return data
