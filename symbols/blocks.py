"""Layers that all families share. Names of parameters are those of the published insightface models.

B images of a batch, C channels, (h, w) height and width of a map
"""
from common.errors import UsageError
from common.mxnet_loader import mx

PIXEL_MEAN, PIXEL_SCALE = 127.5, 0.0078125    # 0..255 -> -1..1
PRELU_START = 0.25
CHOICES = {'net_act': ('prelu', 'relu'), 'dtype': ('float32', 'float16'), 'prelu': ('plain', 'fast')}


class Layers:
    """Layer functions with the settings of one network; every family passes these on.

    bn_mom: share of the old running statistics that batch norm keeps per step.
    net_act: 'prelu', a slope per channel [arXiv:1502.01852], or 'relu'.
    dtype: 'float32', or 'float16' for half precision: weights, biases and PReLU slopes and all activations are
    float16; parameters and statistics of batch norm and the embedding are float32.
    half_products: True where the device multiplies float16 itself (GPUs). False: each product casts its float16
    operands to float32 and its result back, so that storage and rounding are the same (CPUs).
    prelu: 'plain', the operator of the published symbols, to save and to infer; or 'fast', an equal expression to
    train with, see fast_prelu.
    Names and shapes of all parameters are the same for every dtype, half_products and prelu.
    """

    def __init__(self, bn_mom=0.9, net_act='prelu', dtype='float32', half_products=False, prelu='plain'):
        for setting, value in (('net_act', net_act), ('dtype', dtype), ('prelu', prelu)):
            if value not in CHOICES[setting]:
                raise UsageError('%s=%s: known are %s' % (setting, value, ' and '.join(CHOICES[setting])))
        self.bn_mom, self.net_act, self.prelu = bn_mom, net_act, prelu
        self.is_half = dtype == 'float16'
        self.casts = self.is_half and not half_products

    def images(self):
        """The input `data` (B, 3, h, w), uint8 or float32, 0..255 -> the same as float32."""
        return mx.sym.Cast(mx.sym.Variable('data'), dtype='float32', name='data_float32')

    def halved(self, data):
        """float32 -> the type of activations."""
        return mx.sym.Cast(data, dtype='float16', name='data_float16') if self.is_half else data

    def scaled_images(self):
        """The input `data` scaled to about -1..1, as the type of activations."""
        return self.halved((self.images() - PIXEL_MEAN) * PIXEL_SCALE)

    def variable(self, name, **attributes):
        """A parameter of a product or of an activation."""
        return mx.sym.Variable(name, dtype='float16' if self.is_half else None, **attributes)

    def product(self, operator, data, **parameters):
        """operator(data, **parameters), in float32 where the device does not multiply float16."""
        if not self.casts:
            return operator(data, **parameters)
        parameters = {part: single(value) for part, value in parameters.items()}
        return mx.sym.Cast(operator(single(data), **parameters), dtype='float16')

    def convolution(self, data, num_filter, kernel, stride=1, pad=0, num_group=1, has_bias=False, name=None):
        """Square kernel; NAME_weight and, if has_bias, NAME_bias."""
        def operator(data, **parameters):
            return mx.sym.Convolution(data=data, num_filter=num_filter, kernel=(kernel, kernel),
                                      stride=(stride, stride), pad=(pad, pad), num_group=num_group,
                                      no_bias=not has_bias, name=name, **parameters)
        names = ['weight', 'bias'] if has_bias else ['weight']
        return self.product(operator, data, **{part: self.variable('%s_%s' % (name, part)) for part in names})

    def fully_connected(self, data, num_hidden, name, weight, wd_mult=1.0):
        """-> (B, num_hidden) float32. weight: name of the weight; wd_mult: factor on its decay; NAME_bias."""
        def operator(data, **parameters):
            return mx.sym.FullyConnected(data=data, num_hidden=num_hidden, name=name, **parameters)
        hidden = self.product(operator, data, weight=self.variable(weight, wd_mult=wd_mult),
                              bias=self.variable(name + '_bias'))
        return single(hidden) if self.is_half else hidden

    def batch_norm(self, data, name, eps=2e-5, fix_gamma=False):
        return mx.sym.BatchNorm(data=data, name=name, fix_gamma=fix_gamma, eps=eps, momentum=self.bn_mom)

    def activation(self, data, channels, name):
        """data (B, channels, h, w). prelu has the parameter NAME_gamma (channels,); relu has none."""
        if self.net_act == 'relu':
            return mx.sym.Activation(data=data, act_type='relu', name=name)
        slope = self.variable(name + '_gamma', shape=(channels,), init=mx.init.Constant(PRELU_START))
        if self.prelu == 'plain':
            return mx.sym.LeakyReLU(data=data, gamma=slope, act_type='prelu', name=name)
        return self.product(lambda data, slope: fast_prelu(data, slope, channels, name), data, slope=slope)


def single(data):
    return mx.sym.Cast(data, dtype='float32')


def fast_prelu(data, slope, channels, name):
    """PReLU of data (B, channels, h, w) with slope (channels,), for training: exact, and fast on CPUs.

    max(x, 0) + a min(x, 0) = a x + (1 - a) max(x, 0), for every a, with the derivative a at x = 0 that LeakyReLU has.
    a x is a 1x1 convolution of each channel alone: the gradient of its weight is the sum over B, h and w that makes
    LeakyReLU slow. Output and gradient of x equal those of LeakyReLU to 1e-6 relative; the gradient of a is the
    difference of two float32 sums, right to 1e-6 of the sum of |dy x|. One more map is kept for the backward pass.

    LeakyReLU itself should not be trained: in symbols, MXNet 1.9.1 lets it write dx over dy and then sums the
    gradient of a from what is left, so that it comes out a times too small, unless oneDNN copied dy before.
    """
    slope = mx.sym.reshape(slope, shape=(channels, 1, 1, 1), name=name + '_slope')
    rectified = mx.sym.Activation(data=data, act_type='relu', name=name + '_rectified')
    return mx.sym.elemwise_add(per_channel(data, slope, channels, name + '_all'),
                               per_channel(rectified, 1 - slope, channels, name + '_positive'), name=name)


def per_channel(data, factor, channels, name):
    """data (B, channels, h, w) times factor (channels, 1, 1, 1)."""
    return mx.sym.Convolution(data=data, weight=factor, num_filter=channels, num_group=channels, kernel=(1, 1),
                              no_bias=True, name=name)
