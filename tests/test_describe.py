"""Layers, parameters, multiply-adds and memory of a network, against numbers worked out by hand."""
import re

import numpy as np
import pytest

import config
import train_parall
from common.mxnet_loader import mx
from recognition.backbone_memory import measure_backbone
from recognition.describe import MB, Layer, describe, layers_of, network_of, stages
from recognition.settings import complete
from symbols import get_backbone
from symbols.blocks import Layers
from tests.conftest import ROOT


def small_network(embedding_size=5, prelu='plain', **others):
    """One layer of each kind. For images of 8x8: maps of 4x4, in groups, and 5 numbers."""
    layers = Layers(prelu=prelu)
    data = layers.convolution(layers.images(), 6, 3, stride=2, pad=1, name='conv')
    data = layers.activation(layers.batch_norm(data, 'norm'), 6, 'act')
    grouped = layers.convolution(data, 6, 3, pad=1, num_group=3, has_bias=True, name='grouped')
    data = mx.sym.elemwise_add(grouped, data, name='sum')
    return layers.batch_norm(layers.fully_connected(data, embedding_size, 'pre_fc1', 'pre_fc1_weight'), 'fc1')


SMALL = [Layer('data_float32', 'Cast', (3, 8, 8), 0, 0),
         Layer('conv', 'Convolution', (6, 4, 4), 6 * 3 * 9, 6 * 4 * 4 * 3 * 9),
         Layer('norm', 'BatchNorm', (6, 4, 4), 12, 0), Layer('act', 'LeakyReLU', (6, 4, 4), 6, 0),
         Layer('grouped', 'Convolution', (6, 4, 4), 6 * 2 * 9 + 6, 6 * 4 * 4 * 2 * 9),
         Layer('sum', 'elemwise_add', (6, 4, 4), 0, 0),
         Layer('pre_fc1', 'FullyConnected', (5,), 5 * 96 + 5, 5 * 96), Layer('fc1', 'BatchNorm', (5,), 10, 0)]


def test_layers_of_a_small_network():
    assert layers_of(small_network(), (3, 8, 8)) == SMALL


def test_lines_of_a_small_network():
    cfg = complete({'network': 'small', 'net_name': 'mine', 'image_shape': '8,8,3', 'emb_size': 5})
    lines = describe(cfg, lambda family: small_network)
    assert lines[2].split() == ['conv', 'Convolution', '6x4x4', '162', '2592']
    assert [line.split() for line in lines[10:14]] == [
        ['stage', 'layers', 'output', 'parameters', 'multiply-adds'], ['maps', 'of', '8x8', '1', '3x8x8', '0', '0'],
        ['maps', 'of', '4x4', '5', '6x4x4', '294', '4320'], ['vectors', '2', '5', '495', '480']]
    memory = measure_backbone(small_network(prelu='fast'), (3, 8, 8)).activations / 2**20
    assert lines[15:] == ['small: mine, images of 8x8, embedding of 5 numbers', 'parameters: 789',
                          'FLOPs: 4800 multiply-adds per image, of convolutions and fully connected layers',
                          'activations in training: %.1f MB per image, float32; MB = 2**20 bytes' % memory]


def test_a_parameter_of_two_layers_counts_once():
    shared, data = mx.sym.Variable('weight'), mx.sym.Variable('data')
    for name in ('first', 'second'):
        data = mx.sym.Convolution(data, shared, num_filter=3, kernel=(1, 1), no_bias=True, name=name)
    assert [layer[3:] for layer in layers_of(data, (3, 2, 2))] == [(9, 36), (0, 36)]


@pytest.mark.parametrize('network', ['r18', 'ir18', 'm05', 'y1', 'demo'])
def test_totals_are_those_of_the_symbol(network):
    cfg = complete(config.generate_config(network, 'demo', 'arcface'))
    layers, totals = network_of(cfg, get_backbone)
    symbol = get_backbone(cfg.net_name)(cfg.emb_size, **{name: cfg[name] for name in config.network[network]
                                                         if name not in ('net_name', 'emb_size')})
    shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=(1, 3, 112, 112))[0]))
    assert totals.parameters == sum(np.prod(shape) for name, shape in shapes.items() if name != 'data')
    assert sum(map(len, stages(layers).values())) == len(layers) and layers[-1].shape == (cfg.emb_size,)
    assert totals.multiply_adds > totals.parameters and totals.activations > 1 << 20


@pytest.mark.parametrize('network', list(config.network))
def test_the_table_of_the_docs(network):
    """docs/networks.md says what is computed, to the last digit."""
    cfg = complete(config.generate_config(network, 'demo', 'arcface'))
    _, totals = network_of(cfg, get_backbone)
    cells = (network, cfg.emb_size, totals.parameters / 1e6, totals.multiply_adds / 1e9, totals.activations / MB)
    lines = (ROOT / 'docs' / 'networks.md').read_text(encoding='utf-8').splitlines()
    assert '| %s | %d | %.2f | %.3f | %.1f |' % cells in lines


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Call main() in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')

    def call(flags):
        code = train_parall.main(flags.split())
        return (code,) + tuple(capsys.readouterr())
    return call


def test_the_command_line_needs_neither_data_nor_devices(command, tmp_path):
    code, out, _ = command('--network r50 --describe --devices gpu:0,1')
    assert code == 0 and list(tmp_path.iterdir()) == []
    assert 'parameters: 43590848\n' in out and 'FLOPs: 6309330944 multiply-adds' in out
    half = command('--network r50 --describe --fp16-scale 1')[1]
    sizes = [float(re.search(r'training: ([\d.]+) MB per image, %s' % precision, text).group(1))
             for precision, text in (('float32', out), ('half precision', half))]
    assert 0.4 < sizes[1] / sizes[0] < 0.6


@pytest.mark.parametrize('mode', ['--describe', '--plan --devices cpu --set num_classes=10'])
def test_images_that_are_too_small(mode, command):
    code, out, error = command('--network y1 --set image_shape=16,16,3 ' + mode)
    assert (code, out, error.count('\n')) == (2, '', 1)
    assert 'cannot take images of 16x16, its layer conv_6dw7_7_conv2d is too large' in error


def test_either_the_plan_or_the_network(command):
    with pytest.raises(SystemExit):
        command('--plan --describe')
