import json
import pathlib

import cv2
import numpy as np
import pytest

from common.errors import UsageError
from common.mxnet_loader import mx
from symbols import get_backbone, list_backbones, register_backbone
from symbols.blocks import fast_prelu
from tests.make_models import OUTPUTS_OF_FAMILIES

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'published_parameters.json'
PUBLISHED = {'y1': ('fmobilefacenet', {'embedding_size': 128}), 'r34': ('fresnet', {'num_layers': 34}),
             'r50': ('fresnet', {'num_layers': 50}), 'r100': ('fresnet', {'num_layers': 100})}
SETTINGS_OF_LAYERS = ('kernel', 'stride', 'pad', 'num_filter', 'num_group', 'no_bias', 'eps', 'fix_gamma', 'momentum',
                      'act_type', 'p', 'num_hidden')
SMALL = {'net_blocks': (1, 1, 1, 1), 'net_multiplier': 0.25}
R18 = {'num_layers': 18}
VARIANTS = [('fresnet', dict(R18, net_se=1)),
            ('fresnet', dict(R18, net_act='relu', net_output='FC', net_input=0)),
            ('fresnet', dict(R18, net_output='GAP', embedding_size=64, net_input=2, prelu='fast')),
            ('fresnet', dict(R18, net_output='Z', prelu='fast', net_se=1)),
            ('fmobilenet', {'net_multiplier': 0.25}), ('iresnet', dict(R18, prelu='fast')),
            ('vargfacenet', {'net_multiplier': 0.25, 'net_se': 1, 'prelu': 'fast'}),
            ('fmobilefacenet', SMALL),
            ('fmobilefacenet', dict(SMALL, prelu='fast')),
            ('fmobilefacenet', dict(SMALL, net_blocks=(2, 1, 1, 1), net_act='relu', net_output='E', dropout=0.0))]
HALF_VARIANTS = ([(family, {'net_output': output}) for family, output in OUTPUTS_OF_FAMILIES]
                 + [('fresnet', dict(R18, net_se=1)), ('fresnet', dict(R18, net_input=2, net_output='GAP')),
                    ('fresnet', dict(R18, net_input=0, net_act='relu')), ('fmobilefacenet', SMALL),
                    ('vargfacenet', {'net_se': 1}),
                    ('fmobilefacenet', dict(net_blocks=(2, 8, 16, 4), net_act='relu'))])


def shapes(symbol):
    arguments, outputs, auxiliary = symbol.infer_shape(data=(2, 3, 112, 112))
    return (dict(zip(symbol.list_arguments(), arguments)), outputs,
            dict(zip(symbol.list_auxiliary_states(), auxiliary)))


def bound(symbol, dtype='uint8', shape=(2, 3, 112, 112), contexts=None):
    module = mx.mod.Module(symbol, label_names=None, context=contexts or mx.cpu())
    module.bind([mx.io.DataDesc('data', shape, dtype)], for_training=True)
    mx.random.seed(0)
    module.init_params(mx.init.Xavier(rnd_type='gaussian', factor_type='out', magnitude=2))
    return module


def random_images(*shape):
    return np.random.RandomState(0).randint(0, 256, shape or (2, 3, 112, 112))


def forward(module, images, dtype='uint8', is_train=False):
    module.forward(mx.io.DataBatch([mx.nd.array(images, dtype=dtype)]), is_train=is_train)
    return module.get_outputs()[0]


def gradients(module, images):
    """Name -> gradient of every parameter, for one fixed gradient of the embedding."""
    embedding = forward(module, images, is_train=True)
    module.backward([mx.nd.array(np.random.RandomState(1).randn(*embedding.shape))])
    executor = module._exec_group.execs[0]
    return {name: executor.grad_dict[name].asnumpy() for name in module._exec_group.param_names}


@pytest.mark.parametrize('network', PUBLISHED)
def test_parameters_are_those_of_the_published_model(network):
    published = json.loads(GOLDEN.read_text())[network]
    family, settings = PUBLISHED[network]
    symbol = get_backbone(family)(**settings)
    arguments, outputs, auxiliary = shapes(symbol)
    assert list(arguments)[0] == 'data' and symbol.list_outputs() == ['fc1_output']
    assert outputs == [(2, settings.get('embedding_size', 512))]
    assert [[name, list(shape)] for name, shape in arguments.items()][1:] == published['arguments']
    assert [[name, list(shape)] for name, shape in auxiliary.items()] == published['auxiliary']


@pytest.mark.parametrize('network', PUBLISHED)
def test_layer_settings_are_those_of_the_published_symbol(network, shared_data):
    family, settings = PUBLISHED[network]
    ours = get_backbone(family)(**settings)
    theirs = mx.sym.load(str(shared_data / 'models' / ('%s-symbol.json' % network)))
    layers = [named_layers(symbol) for symbol in (ours, theirs)]
    assert list(layers[0]) == list(layers[1])
    for name, settings_of_layer in layers[1].items():
        assert layers[0][name] == settings_of_layer, name
    wd_mults = {name: attributes['__wd_mult__'] for name, attributes in ours.attr_dict().items()
                if float(attributes.get('__wd_mult__', 1)) != 1}
    assert {name: float(wd_mult) for name, wd_mult in wd_mults.items()} == (
        {'fc1_weight': 10.0} if network == 'y1' else {})


def named_layers(symbol):
    """Name -> operator and settings, those with parameters, in order; settings at MXNet's default are left out."""
    defaults = {'stride': '(1, 1)', 'pad': '(0, 0)', 'num_group': '1', 'no_bias': 'False', 'eps': '0.001'}
    layers = {}
    for node in json.loads(symbol.tojson())['nodes']:
        if node['op'] in ('Convolution', 'BatchNorm', 'LeakyReLU', 'FullyConnected', 'Dropout'):
            found = {key: value for key, value in node['attrs'].items() if key in SETTINGS_OF_LAYERS}
            layers[node['name']] = node['op'], {key: value for key, value in found.items()
                                                if value != defaults.get(key)}
    return layers


def test_y1_gives_the_embeddings_of_the_published_model(shared_data):
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(shared_data / 'models' / 'y1'), 0)
    paths = sorted((shared_data / 'lfw_a').glob('*/*.jpg'))[:4]
    images = np.stack([cv2.imread(str(path))[:, :, ::-1].transpose(2, 0, 1) for path in paths])
    y1 = get_backbone('fmobilefacenet')
    embeddings = []
    for network in (symbol, y1(embedding_size=128), y1(embedding_size=128, prelu='fast')):
        module = bound(network, 'float32', images.shape)
        module.set_params(arguments, auxiliary)
        embeddings.append(forward(module, images, 'float32').asnumpy())
    np.testing.assert_allclose(embeddings[1], embeddings[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(embeddings[2], embeddings[0], rtol=1e-4, atol=1e-5 * np.abs(embeddings[0]).max())


@pytest.mark.parametrize('family, settings', VARIANTS)
def test_every_parameter_learns(family, settings):
    symbol = get_backbone(family)(**settings)
    size = settings.get('embedding_size', 128 if family == 'fmobilefacenet' else 512)
    shape = (2, 3, 64, 64) if family.endswith('resnet') else (2, 3, 112, 112)
    module = bound(symbol, shape=shape)
    if settings.get('net_output') == 'Z':
        size = 512 * 4 * 4
    assert symbol.list_outputs() == ['fc1_output'] and module.output_shapes == [('fc1_output', (2, size))]
    fixed = {name + '_gamma' for name, (_, layer) in named_layers(symbol).items()
             if layer.get('fix_gamma', 'True') == 'True'}
    for name, gradient in gradients(module, random_images(*shape)).items():
        if name not in fixed:
            assert np.abs(gradient).max() > 0, name


def test_bytes_and_floats_give_the_same_embedding():
    symbol = get_backbone('fmobilefacenet')(**SMALL)
    values = [forward(bound(symbol, dtype), random_images(), dtype).asnumpy() for dtype in ('uint8', 'float32')]
    np.testing.assert_array_equal(*values)


def leaky_relu(data, slope, channels, name):
    return mx.sym.LeakyReLU(data=data, gamma=slope, act_type='prelu', name=name)


def prelu_inside_a_graph(function, values, slopes, d_output):
    """Output, dx and the gradient of the slopes, with operators before and after; NumPy."""
    inside = function(mx.sym.Variable('x') * 1, mx.sym.Variable('slope', shape=slopes.shape), len(slopes), 'prelu')
    executor = (inside * 1).simple_bind(mx.cpu(), x=values.shape)
    executor.copy_params_from({'x': mx.nd.array(values), 'slope': mx.nd.array(slopes)})
    executor.forward(is_train=True)
    executor.backward([mx.nd.array(d_output)])
    return [array.asnumpy() for array in (executor.outputs[0], executor.grad_dict['x'], executor.grad_dict['slope'])]


@pytest.mark.parametrize('shape', [(1, 3, 5, 5), (3, 17, 13, 11), (2, 64, 56, 56), (8, 512, 7, 7), (1, 8, 1, 1)])
def test_fast_prelu_is_exact(shape):
    rng = np.random.RandomState(0)
    values, d_output = (rng.randn(*shape).astype('float32') for _ in range(2))
    values.ravel()[::5] = 0
    slopes = np.resize([0.25, 0, -0.5, 1, 2.5, 0.01], shape[1]).astype('float32')
    output, d_values, d_slopes = prelu_inside_a_graph(fast_prelu, values, slopes, d_output)
    theirs = prelu_inside_a_graph(leaky_relu, values, slopes, d_output)
    np.testing.assert_allclose(output, theirs[0], rtol=1e-6, atol=0)
    np.testing.assert_allclose(d_values, theirs[1], rtol=1e-6, atol=0)
    terms = d_output.astype('float64') * values
    exact = np.where(values < 0, terms, 0).sum(axis=(0, 2, 3))        # LeakyReLU's is wrong here, see fast_prelu
    assert (np.abs(d_slopes - exact) <= 1e-6 * np.abs(terms).sum(axis=(0, 2, 3))).all()


def direction(gradients):
    vector = np.concatenate([gradient.ravel().astype('float64') for _, gradient in sorted(gradients.items())])
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize('family, settings, shape', [('fmobilefacenet', SMALL, (8, 3, 112, 112)),
                                                     ('fresnet', dict(R18, net_se=1), (8, 3, 64, 64))])
def test_networks_with_fast_prelu_are_the_same_networks(family, settings, shape):
    symbols = [get_backbone(family)(prelu=prelu, dropout=0.0, **settings) for prelu in ('plain', 'fast')]
    assert shapes(symbols[0]) == shapes(symbols[1])
    assert list(shapes(symbols[0])[0]) == list(shapes(symbols[1])[0])
    plain, fast = (bound(symbol, shape=shape) for symbol in symbols)
    fast.set_params(*plain.get_params())
    first, *later = (forward(module, random_images(*shape)).asnumpy() for module in (plain, fast, fast))
    for embedding in later:                                                                 # inference, twice
        np.testing.assert_allclose(embedding, first, rtol=0, atol=1e-5 * np.abs(first).max())
    wanted, found = (gradients(module, random_images(*shape)) for module in (plain, fast))
    noise = 1e-5 * max(np.linalg.norm(gradient) for gradient in wanted.values())    # some are 0 but for rounding
    for name in wanted:
        if not name.endswith('_gamma') or 'relu' not in name:           # the slopes: test_fast_prelu_is_exact
            assert np.linalg.norm(found[name] - wanted[name]) <= 1e-2 * np.linalg.norm(wanted[name]) + noise, name


@pytest.mark.parametrize('half_products', [False, True])
@pytest.mark.parametrize('prelu', ['plain', 'fast'])
@pytest.mark.parametrize('family, settings', HALF_VARIANTS)
def test_half_precision_rule(family, settings, prelu, half_products):
    symbol = get_backbone(family)(dtype='float16', half_products=half_products, prelu=prelu, **settings)
    normalisation = {name for node, (operator, _) in named_layers(symbol).items() if operator == 'BatchNorm'
                     for name in (node + '_gamma', node + '_beta')}
    for data in ('uint8', 'float32'):
        types, outputs, auxiliary = symbol.infer_type(data=data)
        for name, dtype in list(zip(symbol.list_arguments(), types))[1:]:
            assert dtype == (np.float32 if name in normalisation else np.float16), name
        assert outputs == [np.float32] and set(auxiliary) == {np.float32}
    assert normalisation & set(symbol.list_arguments())
    assert symbol.list_outputs() == ['fc1_output'] and None not in symbol.infer_shape(data=(2, 3, 112, 112))[0]


def inputs_of_operators(symbol, dtype):
    """Operators -> types of their first input, of a network with images of that type."""
    internals = symbol.get_internals()
    types = dict(zip(internals.list_outputs(), internals.infer_type(data=dtype)[1]))
    nodes = json.loads(symbol.tojson())['nodes']
    found = {}
    for node in nodes:
        if node['inputs']:
            source = nodes[node['inputs'][0][0]]
            output = source['name'] if source['op'] == 'null' else source['name'] + '_output'
            found.setdefault(node['op'], set()).add(np.dtype(types[output]).name)
    return found


@pytest.mark.parametrize('half_products', [False, True])
@pytest.mark.parametrize('family, settings', HALF_VARIANTS)
def test_activations_are_half_and_products_are_what_the_device_can(family, settings, half_products):
    symbol = get_backbone(family)(dtype='float16', half_products=half_products, **settings)
    found = inputs_of_operators(symbol, 'uint8')
    product = {'float16' if half_products else 'float32'}
    assert found['Convolution'] == product and found.get('FullyConnected', product) == product
    in_single = {'FullyConnected', 'Convolution', 'Cast', '_minus_scalar', '_mul_scalar', 'BatchNorm'}
    assert all(types == {'float16'} for operator, types in found.items() if operator not in in_single), found
    single = {node for node, dtype in inputs_of_batch_norms(symbol).items() if dtype == 'float32'}
    assert single <= {'fc1', 'bn_data'}                        # what they normalise is float32


def inputs_of_batch_norms(symbol):
    """Name of a batch norm -> type of what it normalises."""
    internals = symbol.get_internals()
    types = dict(zip(internals.list_outputs(), internals.infer_type(data='uint8')[1]))
    nodes = json.loads(symbol.tojson())['nodes']
    sources = {node['name']: nodes[node['inputs'][0][0]]['name'] for node in nodes if node['op'] == 'BatchNorm'}
    return {name: np.dtype(types[source if source in types else source + '_output']).name
            for name, source in sources.items()}


@pytest.mark.parametrize('family, settings, shape', [('fmobilefacenet', SMALL, (8, 3, 112, 112)),
                                                     ('fresnet', dict(R18, net_se=1), (8, 3, 32, 32))])
def test_half_precision_is_close_and_trains_on_the_cpu(family, settings, shape):
    images, build = random_images(*shape), get_backbone(family)
    single, plain, fast = (bound(build(dropout=0.0, **precision, **settings), shape=shape) for precision in (
        {'prelu': 'fast'}, {'dtype': 'float16'}, {'dtype': 'float16', 'prelu': 'fast'}))
    embedding = forward(single, images).asnumpy()
    for half in (plain, fast):
        half.set_params(*single.get_params())
        np.testing.assert_allclose(forward(half, images).asnumpy(), embedding, rtol=0,
                                   atol=0.01 * np.abs(embedding).max())
    assert direction(gradients(single, images)) @ direction(gradients(fast, images)) > 0.99
    fast.init_optimizer(optimizer_params={'learning_rate': 1e-3, 'momentum': 0.9, 'multi_precision': True})
    for _ in range(2):
        gradients(fast, images)
        fast.update()
    arguments, auxiliary = fast.get_params()
    single.set_params({name: array.astype('float32') for name, array in arguments.items()}, auxiliary)
    updated = forward(single, images).asnumpy()
    assert np.isfinite(updated).all() and np.abs(updated - embedding).max() > 0.01 * np.abs(embedding).max()
    np.testing.assert_allclose(forward(fast, images).asnumpy(), updated, rtol=0, atol=0.01 * np.abs(updated).max())


def test_two_devices_bind():
    module = bound(get_backbone('fmobilefacenet')(prelu='fast', **SMALL), shape=(4, 3, 112, 112),
                   contexts=[mx.cpu(0), mx.cpu(1)])
    assert forward(module, random_images(4, 3, 112, 112)).shape == (4, 128)


@pytest.mark.parametrize('family, settings, named', [
    ('fresnet', {'num_layers': 19}, 'num_layers=19'), ('fresnet', {'net_unit': 7}, 'net_unit=7'),
    ('fresnet', {'net_input': 4}, 'net_input=4'), ('fresnet', {'net_act': 'gelu'}, 'net_act=gelu'),
    ('fresnet', {'net_output': 'Q'}, 'net_output=Q'), ('fresnet', {'dropout': 1.5}, 'dropout=1.5'),
    ('fresnet', {'dtype': 'float64'}, 'dtype=float64'), ('fresnet', {'prelu': 'faster'}, 'prelu=faster'),
    ('fmobilenet', {'net_multiplier': 0.75}, '512 filters .* 768 channels'),
    ('vargfacenet', {'net_output': 'GDC'}, 'net_output=GDC'),
    ('vargfacenet', {'net_multiplier': 0.7}, 'multiple of 0.25'),
    ('fmobilefacenet', {'net_blocks': (1, 2)}, 'net_blocks'), ('fmobilefacenet', {'net_blocks': (0, 2, 1, 1)}, '0, 2')])
def test_senseless_settings_are_named(family, settings, named):
    with pytest.raises(UsageError, match=named):
        get_backbone(family)(**settings)


def test_registry():
    assert list_backbones() == ['fmobilefacenet', 'fmobilenet', 'fresnet', 'iresnet', 'vargfacenet']
    with pytest.raises(UsageError, match='did you mean fresnet'):
        get_backbone('fresnet2')
    with pytest.raises(ValueError, match='two networks'):
        register_backbone('fresnet')(lambda: None)


def torch_names(units):
    """Names of an IResNet's state dict without counters of batches -> shapes; from the structure of the network."""
    def norm(name, size):
        return {'%s.%s' % (name, part): (size,) for part in ('weight', 'bias', 'running_mean', 'running_var')}
    found = dict({'conv1.weight': (64, 3, 3, 3), 'prelu.weight': (64,)}, **norm('bn1', 64))
    before = 64
    for stage, (number, size) in enumerate(zip(units, (64, 128, 256, 512)), start=1):
        for unit in range(number):
            name = 'layer%d.%d.' % (stage, unit)
            found.update({name + 'conv1.weight': (size, before, 3, 3), name + 'prelu.weight': (size,),
                          name + 'conv2.weight': (size, size, 3, 3)}, **norm(name + 'bn1', before))
            found.update(norm(name + 'bn2', size), **norm(name + 'bn3', size))
            if unit == 0:
                found.update({name + 'downsample.0.weight': (size, before, 1, 1)}, **norm(name + 'downsample.1', size))
            before = size
    return dict(found, **{'fc.weight': (512, 25088), 'fc.bias': (512,)}, **norm('bn2', 512), **norm('features', 512))


def from_torch(name):
    """The map of docs/networks.md."""
    layer, _, part = name.rpartition('.')
    is_norm = layer.rpartition('.')[2][:2] == 'bn' or layer.endswith('downsample.1') or layer == 'features'
    parts = {'running_mean': 'moving_mean', 'running_var': 'moving_var'}
    if is_norm:
        parts.update(weight='gamma', bias='beta')
    if layer.endswith('prelu'):
        parts = {'weight': 'gamma'}
    layer = {'bn1': 'bn0', 'bn2': 'bn1', 'fc': 'pre_fc1', 'features': 'fc1'}.get(layer, layer)
    return '%s_%s' % (layer.replace('.', '_'), parts.get(part, part))


@pytest.mark.parametrize('num_layers', [18, 34, 50, 100, 200])
def test_iresnet_has_the_parameters_of_its_torch_twin(num_layers):
    from symbols.iresnet import UNITS
    arguments, _, auxiliary = shapes(get_backbone('iresnet')(num_layers=num_layers))
    wanted = {from_torch(name): shape for name, shape in torch_names(UNITS[num_layers]).items()}
    arguments.pop('data')
    assert dict(arguments, **auxiliary) == wanted


@pytest.mark.parametrize('settings, stages', [({'num_layers': 124}, (3, 13, 40, 5)),
                                              ({'num_layers': 152}, (3, 8, 36, 3)),
                                              ({'num_layers': 200}, (3, 24, 36, 3))])
def test_deep_fresnets_have_the_published_stages(settings, stages):
    names = get_backbone('fresnet')(**settings).list_arguments()
    assert stages == tuple(sum(name.startswith('stage%d_' % stage) and name.endswith('_conv2_weight')
                               for name in names) for stage in (1, 2, 3, 4))


def test_fmobilenet_has_the_published_widths():
    arguments, outputs, _ = shapes(get_backbone('fmobilenet')(embedding_size=256))
    widths = [arguments['conv_%d_conv2d_weight' % block][0] for block in range(1, 15)]
    assert widths == [32, 64, 128, 128, 256, 256] + 6 * [512] + 2 * [1024]
    assert arguments['conv_14_dw_conv2d_weight'] == (1024, 1, 3, 3)
    assert arguments['conv_13_dw_relu_gamma'] == (512,) and outputs == [(2, 256)]


@pytest.mark.parametrize('net_multiplier, filters, shared', [(1.0, 512, 2), (0.5, 512, 1), (0.25, 256, 1), (2, 512, 4)])
def test_fmobilenet_has_the_published_gdc(net_multiplier, filters, shared):
    """512 filters whatever the width, where there are as many channels."""
    arguments, _, auxiliary = shapes(get_backbone('fmobilenet')(embedding_size=256, net_multiplier=net_multiplier))
    assert arguments['conv_6dw7_7_conv2d_weight'] == (filters, shared, 7, 7)
    assert arguments['pre_fc1_weight'] == (256, filters) and auxiliary['conv_6dw7_7_batchnorm_moving_var'] == (filters,)


def separable_shapes(name, channels, filters, factor=2):
    """Weights of a 3x3 convolution in groups of 8 channels, then 1x1."""
    return {name + '_conv2d_depthwise_weight': (factor * channels, 8, 3, 3),
            name + '_conv2d_pointwise_weight': (filters, factor * channels, 1, 1)}


def vargface_weights(net_se):
    """Name -> shape of the weights of the published network, net_multiplier 1.25; from its structure."""
    def gate(name, size):
        return {name + '_se_conv1_weight': (size // 4, size, 1, 1), name + '_se_conv2_weight': (size, size // 4, 1, 1)}
    head = 'vargface_head_head_pooling_'
    found = dict({'vargface_head_conv1_weight': (40, 3, 3, 3), 'embed_convx_weight': (1024, 320, 1, 1),
                  'embed_convx_depthwise_weight': (1024, 8, 7, 7), 'embed_convx_pointwise_weight': (512, 1024, 1, 1),
                  'pre_fc1_weight': (512, 512)}, **(gate(head[:-1], 40) if net_se else {}))
    for part in ('shortcut', 'sep1_data', 'sep2_data'):
        found.update(separable_shapes(head + part, 40, 40, factor=1))
    for stage, units, before, size in ((2, 3, 40, 80), (3, 7, 80, 160), (4, 4, 160, 320)):
        name = 'vargface_stage_%d_unit_' % stage
        for part in ('shortcut', 'sep1_data_branch', 'sep2_data_branch'):
            found.update(separable_shapes('%s1_%s' % (name, part), before, size))
        found.update(separable_shapes(name + '1_sep2_data', size, size))
        for unit in range(2, units + 1):
            for part in ('sep1_data', 'sep2_data'):
                found.update(separable_shapes('%s%d_%s' % (name, unit, part), size, size))
            found.update(gate('%s%d' % (name, unit), size) if net_se else {})
    return found


@pytest.mark.parametrize('net_se', [0, 1])
def test_vargfacenet_has_the_published_weights(net_se):
    arguments, outputs, auxiliary = shapes(get_backbone('vargfacenet')(net_se=net_se))
    weights = {name: shape for name, shape in arguments.items() if name.endswith('_weight')}
    assert weights == vargface_weights(net_se) and outputs == [(2, 512)]
    biases = {name for name in arguments if name.endswith('_bias')}
    assert biases == {'pre_fc1_bias'} | {name[:-6] + 'bias' for name in weights if '_se_conv' in name}
    normed = {name[:-12] for name in auxiliary if name.endswith('_moving_mean')}
    assert normed == {'fc1'} | {name[:-7] + '_bn' for name in set(weights) - {'pre_fc1_weight'} if '_se_' not in name}
    active = {name[:-10] for name in arguments if name.endswith('_act_gamma')}
    assert {'embed_convx', 'embed_convx_pointwise', 'vargface_stage_2_unit_1_sep1_data',
            'vargface_stage_2_unit_2_sep1_data_conv2d_pointwise'} <= active
    linear = tuple(part + '_conv2d_pointwise' for part in ('shortcut', 'branch', 'sep2_data'))
    assert not [name for name in active if name.endswith(linear + ('embed_convx_depthwise',))]
