"""A trained backbone as MXNet saves it, PREFIX-symbol.json and PREFIX-NNNN.params: reading, checking, running."""
import os
import re

import numpy as np

from common.errors import UsageError, UserError
from common.files import replacing
from common.mxnet_loader import mx
from common.parameter_file import load_parameters
from common.symbol_file import load_symbol

_MODEL = re.compile(r'(.+),\s*([0-9]{1,4})')
_DEVICE = re.compile('cpu|gpu(?::([0-9]{1,2}))?')
_PARAMS = re.compile(r'-([0-9]{4})\.params')


class SavedModel:
    """symbol: images `data` -> embedding; parameters: {name: NumPy array}; statistics: the same, of batch norm."""

    def __init__(self, symbol, parameters, statistics):
        self.symbol, self.parameters, self.statistics = symbol, parameters, statistics

    def infer(self, size, batch_size=1):
        """{name of an input, a parameter, a statistic or the output: shape} for images of size (h, w).

        UserError if the parameters do not fit.
        """
        try:
            arguments, outputs, auxiliary = self.symbol.infer_shape_partial(data=(batch_size, 3) + tuple(size))
        except mx.MXNetError:
            raise UserError('the network does not take images of %dx%d: see --image-size' % tuple(size)) from None
        shapes = dict(zip(self.symbol.list_arguments(), arguments))
        shapes.update(zip(self.symbol.list_auxiliary_states(), auxiliary))
        saved = dict(self.parameters, **self.statistics)
        for name, shape in shapes.items():
            if name != 'data' and (name not in saved or saved[name].shape != shape):
                raise UserError('%s is %s, the symbol and images of %dx%d (--image-size) need %s' % (
                    (name, saved[name].shape if name in saved else 'not in the .params file') + tuple(size) + (shape,)))
        shapes.update(zip(self.symbol.list_outputs(), outputs))
        return shapes

    def write(self, prefix):
        """PREFIX-symbol.json and PREFIX-0000.params, float32."""
        named = {'arg:' + name: array for name, array in self.parameters.items()}
        named.update({'aux:' + name: array for name, array in self.statistics.items()})
        with replacing(prefix + '-symbol.json') as path:
            path.write_text(self.symbol.tojson(), encoding='utf-8')
        with replacing(prefix + '-0000.params') as path:
            try:
                mx.nd.save(str(path), {name: mx.nd.array(array, dtype='float32') for name, array in named.items()})
            except mx.MXNetError as error:
                raise UserError('cannot write %s: %s' % (path, str(error).strip().splitlines()[-1])) from None


def split_epoch(text):
    """'PREFIX,EPOCH' -> (PREFIX, EPOCH); 'PREFIX' -> (PREFIX, None)."""
    match = _MODEL.fullmatch(text)
    return (match.group(1), int(match.group(2))) if match else (text, None)


def split_model(text):
    """'PREFIX,EPOCH' or, where there is only one PREFIX-NNNN.params, 'PREFIX' -> (PREFIX, number). UsageError."""
    prefix, number = split_epoch(text)
    if number is not None:
        return prefix, number
    folder, name = os.path.split(os.path.abspath(text))
    found = os.listdir(folder) if os.path.isdir(folder) else []
    ends = (_PARAMS.fullmatch(file[len(name):]) for file in found if file.startswith(name))
    numbers = sorted(int(end.group(1)) for end in ends if end)
    if len(numbers) != 1:
        raise UsageError('--model %s: PREFIX,EPOCH is expected; %s' % (text, 'epochs here are %s' % ', '.join(
            map(str, numbers)) if numbers else 'there is no %s-NNNN.params' % os.path.join(folder, name)))
    return text, numbers[0]


def model_files(prefix, number):
    """Paths of the symbol and of the parameters."""
    return os.path.abspath(prefix + '-symbol.json'), os.path.abspath('%s-%04d.params' % (prefix, number))


def load_model(prefix, number):
    """SavedModel as it is on the disk. UserError for a missing or damaged file, or numbers that are not finite."""
    path_symbol, path_params = model_files(prefix, number)
    parts = {'arg': {}, 'aux': {}}
    for key, array in _load_arrays(path_params).items():
        kind, _, name = key.partition(':')
        if kind not in parts:
            raise UserError('%s holds no backbone: names start with arg: or aux:' % path_params)
        parts[kind][name] = array.asnumpy()
        if not np.isfinite(parts[kind][name]).all():
            raise UserError('%s: %s holds numbers that are not finite: take another epoch' % (path_params, name))
    return SavedModel(load_symbol(path_symbol), parts['arg'], parts['aux'])


def _load_arrays(path):
    if not os.path.isfile(path):
        raise UserError('no checkpoint at %s: check --model PREFIX,EPOCH' % path)
    return load_parameters(path)


def find_device(text):
    """MXNet's context. UsageError for a device that is not there."""
    found = _DEVICE.fullmatch(text)
    if not found:
        raise UsageError('--device %s: cpu, gpu or gpu:N is expected' % text)
    if text == 'cpu':
        return mx.cpu()
    number, count = int(found.group(1) or 0), mx.context.num_gpus()
    if number >= count:
        raise UsageError('--device %s: MXNet finds %d GPUs' % (text, count))
    return mx.gpu(number)


class Embedder:
    """A SavedModel bound to a device, for batches of one size. Nothing is trained."""

    def __init__(self, model, batch_size, size, context=None):
        """size: (h, w) of the images; context: of MXNet, the CPU if none is given. UserError as SavedModel.infer."""
        shape = (batch_size, 3) + tuple(size)
        output, = model.symbol.list_outputs()
        self.embedding_size = int(np.prod(model.infer(size, batch_size)[output][1:]))
        self._executor = model.symbol.simple_bind(context or mx.cpu(), grad_req='null', data=shape)
        for saved, bound in ((model.parameters, self._executor.arg_dict), (model.statistics, self._executor.aux_dict)):
            for name in bound:
                if name != 'data':
                    bound[name][:] = saved[name]

    def __call__(self, images):
        """images (B, 3, h, w), 0..255, R, G, B -> embeddings (B, D) float32."""
        self._executor.forward(is_train=False, data=mx.nd.array(images, dtype='float32'))
        return self._executor.outputs[0].asnumpy().reshape(len(images), -1)
