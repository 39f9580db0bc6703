import json
import pathlib

import cv2
import numpy as np
import pytest

from common.errors import UsageError
from common.mxnet_loader import mx
from symbols import get_backbone, list_backbones, register_backbone

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'published_parameters.json'
PUBLISHED = {'y1': ('fmobilefacenet', {'embedding_size': 128}), 'r34': ('fresnet', {'num_layers': 34}),
             'r50': ('fresnet', {'num_layers': 50}), 'r100': ('fresnet', {'num_layers': 100})}
SMALL = {'net_blocks': (1, 1, 1, 1), 'net_multiplier': 0.25}
VARIANTS = [('fresnet', {'num_layers': 18, 'net_se': 1}),
            ('fresnet', {'num_layers': 18, 'net_act': 'relu', 'net_output': 'FC'}),
            ('fresnet', {'num_layers': 18, 'net_output': 'GAP', 'embedding_size': 64}),
            ('fmobilefacenet', dict(SMALL)),
            ('fmobilefacenet', dict(SMALL, net_blocks=(2, 1, 1, 1), net_act='relu', net_output='E'))]
HALF_VARIANTS = [('fresnet', {'num_layers': 18, 'net_se': 1}), ('fmobilefacenet', dict(SMALL, net_output='GDC'))]


def shapes(symbol):
    arguments, outputs, auxiliary = symbol.infer_shape(data=(2, 3, 112, 112))
    return (dict(zip(symbol.list_arguments(), arguments)), outputs,
            dict(zip(symbol.list_auxiliary_states(), auxiliary)))


def bound(symbol, dtype='uint8', batch_size=2, contexts=None, for_training=True):
    module = mx.mod.Module(symbol, label_names=None, context=contexts or mx.cpu())
    module.bind([mx.io.DataDesc('data', (batch_size, 3, 112, 112), dtype)], for_training=for_training)
    mx.random.seed(0)
    module.init_params(mx.init.Xavier(rnd_type='gaussian', factor_type='out', magnitude=2))
    return module


def random_images(batch_size=2):
    return np.random.RandomState(0).randint(0, 256, (batch_size, 3, 112, 112))


def forward(module, images, dtype='uint8', is_train=False):
    module.forward(mx.io.DataBatch([mx.nd.array(images, dtype=dtype)]), is_train=is_train)
    return module.get_outputs()[0]


@pytest.mark.parametrize('network', PUBLISHED)
def test_parameters_are_those_of_the_published_model(network):
    published = json.loads(GOLDEN.read_text())[network]
    family, settings = PUBLISHED[network]
    symbol = get_backbone(family)(**settings)
    arguments, outputs, auxiliary = shapes(symbol)
    assert list(arguments)[0] == 'data' and symbol.list_outputs() == ['fc1_output']
    assert [[name, list(shape)] for name, shape in arguments.items()][1:] == published['arguments']
    assert [[name, list(shape)] for name, shape in auxiliary.items()] == published['auxiliary']


@pytest.mark.parametrize('network', PUBLISHED)
def test_layer_settings_are_those_of_the_published_symbol(network, shared_data):
    family, settings = PUBLISHED[network]
    ours = get_backbone(family)(**settings).attr_dict()
    theirs = mx.sym.load(str(shared_data / 'models' / ('%s-symbol.json' % network))).attr_dict()
    wanted = ('kernel', 'stride', 'pad', 'num_filter', 'num_group', 'no_bias', 'eps', 'fix_gamma', 'momentum',
              'act_type', 'p', 'num_hidden')
    for name in set(ours) & set(theirs):
        for key in wanted:
            if key in theirs[name] and key in ours[name]:
                assert ours[name][key] == theirs[name][key], (name, key)
    assert ours['pre_fc1'] and (network != 'y1' or float(ours['fc1_weight']['__wd_mult__']) == 10.0)


def test_y1_gives_the_embeddings_of_the_published_model(shared_data):
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(shared_data / 'models' / 'y1'), 0)
    paths = sorted((shared_data / 'lfw_a').glob('*/*.jpg'))[:4]
    images = np.stack([cv2.imread(str(path))[:, :, ::-1].transpose(2, 0, 1) for path in paths])
    embeddings = []
    for network in (symbol, get_backbone('fmobilefacenet')(embedding_size=128)):
        module = bound(network, 'float32', batch_size=4)
        module.set_params(arguments, auxiliary)
        embeddings.append(forward(module, images, 'float32').asnumpy())
    np.testing.assert_allclose(embeddings[1], embeddings[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('family, settings', VARIANTS)
def test_every_parameter_learns(family, settings):
    symbol = get_backbone(family)(**settings)
    module = bound(symbol)
    embedding = forward(module, random_images(), is_train=True)
    assert embedding.shape == (2, settings.get('embedding_size', 128 if family == 'fmobilefacenet' else 512))
    module.backward([mx.nd.array(np.random.RandomState(1).randn(*embedding.shape))])
    for name, grads in zip(module._exec_group.param_names, module._exec_group.grad_arrays):
        if name != 'fc1_gamma':                        # fixed at 1
            assert np.abs(grads[0].asnumpy()).max() > 0, name


def test_the_map_itself_can_be_the_embedding():
    symbol = get_backbone('fresnet')(num_layers=18, net_output='Z')
    assert symbol.list_outputs() == ['fc1_output'] and shapes(symbol)[1] == [(2, 512 * 7 * 7)]


def test_bytes_and_floats_give_the_same_embedding():
    symbol = get_backbone('fmobilefacenet')(**SMALL)
    values = [forward(bound(symbol, dtype), random_images(), dtype).asnumpy() for dtype in ('uint8', 'float32')]
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize('family, settings', HALF_VARIANTS)
@pytest.mark.parametrize('half_products', [False, True])
def test_half_precision_rule(family, settings, half_products):
    symbol = get_backbone(family)(dtype='float16', half_products=half_products, **settings)
    types, outputs, auxiliary = symbol.infer_type(data='uint8')
    for name, dtype in zip(symbol.list_arguments(), types):
        is_product = name.endswith(('conv0_weight', 'conv2d_weight', 'conv1_weight', 'conv2_weight', 'sc_weight',
                                    'pre_fc1_weight', 'pre_fc1_bias')) or name == 'fc1_weight'
        if name.endswith(('_beta', '_gamma')) and 'relu' not in name:
            assert dtype == np.float32, name
        elif is_product:
            assert dtype == np.float16, name
    assert outputs == [np.float32] and set(auxiliary) == {np.float32}


@pytest.mark.parametrize('family, settings', HALF_VARIANTS)
def test_half_precision_is_close_and_trains_on_the_cpu(family, settings):
    images, build = random_images(4), get_backbone(family)
    single = bound(build(**settings), batch_size=4)
    half = bound(build(dtype='float16', **settings), batch_size=4)
    half.set_params(*single.get_params())
    embeddings = [forward(module, images, is_train=False).asnumpy() for module in (single, half)]
    assert np.abs(embeddings[0] - embeddings[1]).max() < 0.02 * np.abs(embeddings[0]).max()
    half.init_optimizer(optimizer='sgd', optimizer_params={'multi_precision': True, 'learning_rate': 0.1,
                                                           'rescale_grad': 1.0})
    forward(half, images, is_train=True)
    half.backward([mx.nd.ones((4, embeddings[0].shape[1]))])
    half.update()
    arguments, auxiliary = half.get_params()
    single.set_params({name: array.astype('float32') for name, array in arguments.items()}, auxiliary)
    assert np.isfinite(forward(single, images).asnumpy()).all()


def test_two_devices_bind():
    module = bound(get_backbone('fmobilefacenet')(**SMALL), batch_size=4, contexts=[mx.cpu(0), mx.cpu(1)])
    assert forward(module, random_images(4)).shape == (4, 128)


@pytest.mark.parametrize('family, settings, named', [
    ('fresnet', {'num_layers': 19}, 'num_layers=19'), ('fresnet', {'net_unit': 7}, 'net_unit=7'),
    ('fresnet', {'net_input': 0}, 'net_input=0'), ('fresnet', {'net_act': 'gelu'}, 'net_act=gelu'),
    ('fresnet', {'net_output': 'Q'}, 'net_output=Q'), ('fmobilefacenet', {'net_blocks': (1, 2)}, 'net_blocks')])
def test_senseless_settings_are_named(family, settings, named):
    with pytest.raises(UsageError, match=named):
        get_backbone(family)(**settings)


def test_registry():
    assert list_backbones() == ['fmobilefacenet', 'fresnet']
    with pytest.raises(UsageError, match='did you mean fresnet'):
        get_backbone('fresnet2')
    with pytest.raises(ValueError, match='two networks'):
        register_backbone('fresnet')(lambda: None)
