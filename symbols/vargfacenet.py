"""VarGFaceNet [arXiv:1910.04985, section 3]: convolutions in groups of 8 channels, whatever the width."""
from common.errors import UsageError
from common.mxnet_loader import mx
from symbols.blocks import Layers
from symbols.embedding import OutputOptions, embedding
from symbols.registry import register_backbone

GROUP = 8                   # channels that a grouped convolution mixes
FIRST_FILTERS = 32
STAGES = ((3, 64), (7, 128), (4, 256))      # units and filters of the stages 2, 3 and 4
LAST_FILTERS = 1024
SE_REDUCTION = 4


@register_backbone('vargfacenet')
def vargfacenet(embedding_size=512, net_multiplier=1.25, net_se=0, net_output='J', net_act='prelu', bn_mom=0.9,
                dropout=0.4, dtype='float32', half_products=False, prelu='plain'):
    """net_multiplier: factor on all widths but the last; a multiple of 1/4. net_se 1: squeeze and excitation, as in the
    paper, in all units but the first of each stage.

    net_output, dropout: see symbols/embedding.py; GDC is refused, for a convolution as large as the 7x7 map of a
    112x112 image has left (B, 512, 1, 1). net_act, bn_mom, dtype, half_products, prelu: see Layers in
    symbols/blocks.py. Names of parameters are those of the published symbol.
    """
    if net_output == 'GDC':
        raise UsageError('net_output=GDC: vargfacenet has a convolution as large as the map already; J is usual')
    if net_multiplier * 4 < 1 or net_multiplier * 4 % 1:
        raise UsageError('net_multiplier=%s: vargfacenet needs a multiple of 0.25' % net_multiplier)
    net = GroupedLayers(Layers(bn_mom, net_act, dtype, half_products, prelu), net_multiplier, net_se)
    data, channels = net.layers.scaled_images(), int(FIRST_FILTERS * net_multiplier)
    data = net.convolution(data, channels, 3, 1, 'vargface_head_conv1', 'act')
    data = net.unit(data, channels, channels, 'vargface_head_head_pooling', halves=True, factor=1)
    for stage, (units, filters) in enumerate(STAGES, start=2):
        wider = int(filters * net_multiplier)
        data = net.merging_unit(data, channels, wider, 'vargface_stage_%d_unit_1' % stage)
        for unit in range(2, units + 1):
            data = net.unit(data, wider, wider, 'vargface_stage_%d_unit_%d' % (stage, unit))
        channels = wider
    data = net.convolution(data, LAST_FILTERS, 1, 1, 'embed_convx', 'act')
    data = net.convolution(data, LAST_FILTERS, 7, 1, 'embed_convx_depthwise', num_group=LAST_FILTERS // GROUP, pad=0)
    data = net.convolution(data, LAST_FILTERS // 2, 1, 1, 'embed_convx_pointwise', 'act')
    return embedding(net.layers, data, LAST_FILTERS // 2, OutputOptions(net_output, embedding_size, dropout))


class GroupedLayers:
    """The building blocks, for one factor on widths. In all, factor is the widening of grouped convolutions."""

    def __init__(self, layers, multiplier, net_se):
        self.layers, self.multiplier, self.net_se = layers, multiplier, net_se

    def convolution(self, data, num_filter, kernel, stride, name, active='', num_group=1, pad=None):
        """Convolution, batch norm NAME_bn and, if active, the activation NAME_act."""
        pad = kernel // 2 if pad is None else pad
        data = self.layers.convolution(data, num_filter, kernel, stride, pad, num_group, name=name)
        data = self.layers.batch_norm(data, name + '_bn')
        return self.layers.activation(data, num_filter, name + '_act') if active else data

    def separable(self, data, channels, num_filter, stride, name, active='', factor=2):
        """Grouped 3x3 to factor * channels, then 1x1 to num_filter; the second with activation if active."""
        data = self.convolution(data, factor * channels, 3, stride, name + '_conv2d_depthwise', 'act',
                                channels // GROUP)
        return self.convolution(data, num_filter, 1, 1, name + '_conv2d_pointwise', active)

    def unit(self, data, channels, num_filter, name, halves=False, factor=2):
        """Two separable convolutions beside a shortcut, (B, channels, h, w) -> (B, num_filter, h', w')."""
        stride = 2 if halves else 1
        shortcut = data
        if halves:
            shortcut = self.separable(data, channels, num_filter, stride, name + '_shortcut', factor=factor)
        body = self.separable(data, channels, num_filter, stride, name + '_sep1_data', 'act', factor)
        body = self.separable(body, num_filter, num_filter, 1, name + '_sep2_data', factor=factor)
        if self.net_se:
            body = self.squeeze_excite(body, num_filter, name + '_se')
        return self.joined(body, shortcut, num_filter, name + '_out_data')

    def merging_unit(self, data, channels, num_filter, name):
        """The first of a stage: two branches are summed, the map is halved."""
        shortcut = self.separable(data, channels, num_filter, 2, name + '_shortcut')
        branches = [self.separable(data, channels, num_filter, 2, '%s_sep%d_data_branch' % (name, branch))
                    for branch in (1, 2)]
        body = self.joined(*branches, num_filter, name + '_sep1_data')
        body = self.separable(body, num_filter, num_filter, 1, name + '_sep2_data')
        return self.joined(body, shortcut, num_filter, name + '_out_data')

    def joined(self, left, right, num_filter, name):
        return self.layers.activation(mx.sym.elemwise_add(left, right, name=name), num_filter, name + '_act')

    def squeeze_excite(self, data, num_filter, name):
        """Scale each channel by a gate computed from the means of all channels [arXiv:1709.01507]."""
        narrow = num_filter // SE_REDUCTION
        gate = mx.sym.Pooling(data, global_pool=True, kernel=(7, 7), pool_type='avg', name=name + '_pool1')
        gate = self.layers.convolution(gate, narrow, 1, has_bias=True, name=name + '_conv1')
        gate = self.layers.activation(gate, narrow, name + '_act1')
        gate = self.layers.convolution(gate, num_filter, 1, has_bias=True, name=name + '_conv2')
        return mx.sym.broadcast_mul(data, mx.sym.Activation(gate, act_type='sigmoid', name=name + '_sigmoid'))
