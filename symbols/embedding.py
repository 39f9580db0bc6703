"""Last feature map -> embedding `fc1` (B, embedding_size) float32, by output type."""
from common.errors import UsageError
from common.mxnet_loader import mx

DROPOUT = 0.4


def embedding(layers, data, net_output, embedding_size, num_filter=512, weight=None, weight_wd_mult=1.0):
    """data (B, C, h, w) -> fc1.

    E    batch norm, dropout 0.4, fully connected, batch norm
    FC   the same without dropout
    GAP  batch norm, activation, mean over the map, fully connected, batch norm
    GDC  a depthwise convolution as large as the 7x7 map, fully connected, batch norm
    Z    batch norm, dropout: the map itself is the embedding, whatever embedding_size says
    weight, weight_wd_mult: name of the fully connected weight if it is another, and a factor on its decay.
    """
    if net_output not in OUTPUTS:
        raise UsageError('net_output=%s: known output types are %s' % (net_output, ', '.join(OUTPUTS)))
    features = OUTPUTS[net_output](layers, data, num_filter)
    if net_output == 'Z':
        return mx.sym.Cast(mx.sym.Flatten(features), dtype='float32', name='fc1')
    hidden = layers.fully_connected(features, embedding_size, 'pre_fc1', weight, weight_wd_mult)
    if layers.dtype != 'float32' and not layers.casts:
        hidden = mx.sym.Cast(hidden, dtype='float32')
    return layers.batch_norm(hidden, 'fc1', fix_gamma=True)


def normalised(layers, data, num_filter):
    return layers.batch_norm(data, 'bn1')


def dropped(layers, data, num_filter):
    return mx.sym.Dropout(normalised(layers, data, num_filter), p=DROPOUT, name='dropout0')


def averaged(layers, data, num_filter):
    data = layers.activation(normalised(layers, data, num_filter), 'relu1')
    return mx.sym.Flatten(mx.sym.Pooling(data, global_pool=True, kernel=(7, 7), pool_type='avg', name='pool1'))


def depthwise(layers, data, num_filter):
    data = layers.convolution(data, num_filter, 7, num_group=num_filter, name='conv_6dw7_7_conv2d')
    return layers.batch_norm(data, 'conv_6dw7_7_batchnorm', eps=1e-3)


OUTPUTS = {'E': dropped, 'FC': normalised, 'GAP': averaged, 'GDC': depthwise, 'Z': dropped}
