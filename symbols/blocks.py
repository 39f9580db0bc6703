"""Layers that all families share. Names of parameters are those of the published insightface models."""
from common.errors import UsageError
from common.mxnet_loader import mx

PIXEL_MEAN, PIXEL_SCALE = 127.5, 0.0078125    # 0..255 -> -1..1
PRELU_START = 0.25


class Layers:
    """Layer functions with the settings of one network.

    bn_mom: share of the old running statistics that batch norm keeps per step. act: 'prelu' or 'relu'.
    dtype: 'float32', or 'float16' for half precision: weights and activations of convolutions and fully
    connected layers are float16, parameters of batch norm float32. half_products: the device multiplies float16
    itself (GPUs); else each product casts its float16 operands to float32 and its result back (CPUs), so that
    storage and rounding are the same.
    """

    def __init__(self, bn_mom=0.9, act='prelu', dtype='float32', half_products=False):
        if act not in ('prelu', 'relu'):
            raise UsageError('net_act=%s: known activations are prelu and relu' % act)
        self.bn_mom, self.act, self.dtype = bn_mom, act, dtype
        self.casts = dtype == 'float16' and not half_products

    def images(self, data):
        """data (B, 3, H, W) uint8 or float32, 0..255 -> network input, about -1..1."""
        data = mx.sym.Cast(data, dtype='float32', name='data_float32')
        data = (data - PIXEL_MEAN) * PIXEL_SCALE
        return data if self.dtype == 'float32' else mx.sym.Cast(data, dtype=self.dtype, name='data_half')

    def _product(self, operator, data, parameters, name, **options):
        """An operator with parameters, {argument: variable name}, cast round it if need be."""
        if not self.casts:
            return operator(data=data, name=name, **options, **{
                argument: mx.sym.Variable(variable) for argument, variable in parameters.items()})
        variables = {argument: mx.sym.Cast(mx.sym.Variable(variable, dtype=self.dtype), dtype='float32')
                     for argument, variable in parameters.items()}
        data = mx.sym.Cast(data, dtype='float32')
        return mx.sym.Cast(operator(data=data, name=name, **options, **variables), dtype=self.dtype)

    def convolution(self, data, num_filter, kernel, stride=1, pad=0, num_group=1, name=None):
        """Square kernel, no bias; weight NAME_weight."""
        return self._product(mx.sym.Convolution, data, {'weight': name + '_weight'}, name, num_filter=num_filter,
                             kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), num_group=num_group,
                             no_bias=True)

    def fully_connected(self, data, num_hidden, name, weight=None, weight_wd_mult=1.0):
        """weight (default NAME_weight) with a factor on its weight decay, and NAME_bias."""
        weight = weight or name + '_weight'
        with mx.AttrScope(**({} if weight_wd_mult == 1.0 else {'__wd_mult__': str(weight_wd_mult)})):
            variable = mx.sym.Variable(weight, dtype=self.dtype if self.casts else None)
        bias = mx.sym.Variable(name + '_bias', dtype=self.dtype if self.casts else None)
        if self.casts:
            data, variable, bias = (mx.sym.Cast(part, dtype='float32') for part in (data, variable, bias))
        return mx.sym.FullyConnected(data=data, weight=variable, bias=bias, num_hidden=num_hidden, name=name)

    def batch_norm(self, data, name, eps=2e-5, fix_gamma=False):
        return mx.sym.BatchNorm(data=data, name=name, fix_gamma=fix_gamma, eps=eps, momentum=self.bn_mom)

    def activation(self, data, name):
        """prelu has a slope per channel, NAME_gamma (C,); relu has no parameter."""
        if self.act == 'relu':
            return mx.sym.Activation(data=data, act_type='relu', name=name)
        slope = mx.sym.Variable(name + '_gamma', init=mx.init.Constant(PRELU_START))
        return mx.sym.LeakyReLU(data=data, gamma=slope, act_type='prelu', name=name)
