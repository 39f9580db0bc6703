"""Last feature map -> embedding `fc1` (B, embedding_size) float32, by output type."""
from collections import namedtuple

from common.errors import UsageError
from common.mxnet_loader import mx

OutputOptions = namedtuple('OutputOptions', 'net_output embedding_size dropout weight wd_mult eps gdc_filters',
                           defaults=('pre_fc1_weight', 1.0, 2e-5, None))


def embedding(layers, data, channels, options):
    """data (B, channels, h, w) -> fc1.

    net_output  E    batch norm, dropout, fully connected, batch norm
                FC   the same without dropout
                GAP  batch norm, activation, mean over the map, fully connected, batch norm
                GDC  a depthwise convolution as large as the 7x7 map of a 112x112 image, batch norm, fully
                     connected, batch norm [arXiv:1804.07573, section 3.1]; with gdc_filters, so many filters, each over
                     as many channels
                J    fully connected, batch norm
                Z    batch norm, dropout: the whole map is the embedding, whatever embedding_size says
    dropout: share of numbers set to 0 in training, of E and Z. weight: name of the fully connected layer's weight,
    wd_mult: factor on its decay. eps: of batch norms. gdc_filters: None: one for each channel.
    """
    if options.net_output not in OUTPUTS:
        raise UsageError('net_output=%s: known output types are %s' % (options.net_output, ', '.join(OUTPUTS)))
    if not 0 <= options.dropout < 1:
        raise UsageError('dropout=%s: a share >= 0 and < 1' % options.dropout)
    features = OUTPUTS[options.net_output](layers, data, channels, options)
    if options.net_output == 'Z':
        return mx.sym.Cast(mx.sym.Flatten(features), dtype='float32', name='fc1')
    hidden = layers.fully_connected(features, options.embedding_size, 'pre_fc1', options.weight, options.wd_mult)
    return layers.batch_norm(hidden, 'fc1', options.eps, fix_gamma=True)


def normalised(layers, data, channels, options):
    return layers.batch_norm(data, 'bn1', options.eps)


def dropped(layers, data, channels, options):
    return mx.sym.Dropout(layers.batch_norm(data, 'bn1', options.eps), p=options.dropout, name='dropout0')


def averaged(layers, data, channels, options):
    data = layers.activation(layers.batch_norm(data, 'bn1', options.eps), channels, 'relu1')
    return mx.sym.Flatten(mx.sym.Pooling(data, global_pool=True, kernel=(7, 7), pool_type='avg', name='pool1'))


def depthwise(layers, data, channels, options):
    filters = options.gdc_filters or channels
    if channels % filters:
        raise UsageError('net_output=GDC: its %d filters cannot share %d channels evenly; choose another '
                         'net_multiplier or net_output' % (filters, channels))
    data = layers.convolution(data, filters, 7, num_group=filters, name='conv_6dw7_7_conv2d')
    return layers.batch_norm(data, 'conv_6dw7_7_batchnorm', eps=1e-3)


def unchanged(layers, data, channels, options):
    return data


OUTPUTS = {'E': dropped, 'FC': normalised, 'GAP': averaged, 'GDC': depthwise, 'J': unchanged, 'Z': dropped}
