"""What is exported computes what was trained."""
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from common import export
from common.center_files import CenterRanges, write_centers
from common.class_rows import class_file
from common.demo_set import draw_people
from common.errors import UserError
from common.images import decode_rgb
from common.inference_model import difference, inference_model, noise_images, sample_embeddings
from common.mxnet_loader import mx
from common.saved_model import Embedder, SavedModel, load_model
from common.symbol_graph import Graph
from symbols import get_backbone, list_backbones
from tests.conftest import ROOT
from tests.make_models import OUTPUTS_OF_FAMILIES, SMALL, random_model

SIZE = (112, 112)
VARIANTS = [(family, {'net_output': output}) for family, output in OUTPUTS_OF_FAMILIES]
VARIANTS += [('fresnet', {'net_se': 1, 'net_input': 2}), ('fresnet', {'net_input': 0, 'net_act': 'relu'}),
             ('fmobilenet', {'net_multiplier': 1.0}), ('vargfacenet', {'net_se': 1, 'net_output': 'J'})]


def tool(*flags):
    return export.main([str(flag) for flag in flags])


@pytest.fixture(scope='module')
def rendered():
    """(3, 3, 112, 112) float32: three faces."""
    return np.stack([decode_rgb(image, SIZE) for image in draw_people(0, [3])]).astype(np.float32)


@pytest.fixture(scope='module')
def small():
    return random_model('fmobilefacenet')


@pytest.fixture
def saved(small, tmp_path):
    """Prefix of a checkpoint with the number 0."""
    small.write(str(tmp_path / 'model'))
    return tmp_path / 'model'


@pytest.mark.parametrize('family, settings', VARIANTS, ids=str)
def test_folded_and_onnx_equal_mxnet(family, settings, rendered, tmp_path):
    """Every network and output type, folded or not, for more than one batch size."""
    model = random_model(family, **settings)
    expected = Embedder(model, 3, SIZE)(rendered)
    plain, folded = inference_model(model), inference_model(model, fold=True)
    assert difference(Embedder(folded, 3, SIZE)(rendered), expected) < 1e-5
    assert folded.symbol.list_outputs() == ['fc1_output']
    onnx_writer = pytest.importorskip('common.onnx_writer')
    pytest.importorskip('onnx', reason='the extra `export` is not installed')
    pytest.importorskip('onnxruntime', reason='the extra `export` is not installed')
    for one in (plain, folded):
        content = onnx_writer.to_onnx(one, SIZE).SerializeToString()
        for images, rows in ((rendered, expected), (rendered[:1], expected[:1])):
            assert difference(onnx_writer.run_onnx(content, images), rows) < 1e-4


def test_published_model_on_real_faces(shared_data, tmp_path):
    """Through the command line, folded, against the network as it was published."""
    pytest.importorskip('onnxruntime', reason='the extra `export` is not installed')
    from common.onnx_writer import run_onnx
    photos = sorted((shared_data / 'lfw_a').glob('00[01]*/*.jpg'))[:16]
    images = np.stack([decode_rgb(photo.read_bytes(), SIZE) for photo in photos]).astype(np.float32)
    expected = Embedder(load_model(str(shared_data / 'models' / 'y1'), 0), 16, SIZE)(images)
    out = tmp_path / 'y1'
    assert tool('--model', shared_data / 'models' / 'y1', '--symbol', out, '--onnx', '%s.onnx' % out, '--fold-bn') == 0
    assert difference(run_onnx((tmp_path / 'y1.onnx').read_bytes(), images), expected) < 1e-4
    assert difference(Embedder(load_model(str(out), 0), 16, SIZE)(images), expected) < 1e-5


@pytest.mark.parametrize('family', list_backbones())
def test_training_form_becomes_plain(family):
    """Half precision, the fast form of PReLU and dropout leave no trace; parameters are the same."""
    model = random_model(family)
    training = get_backbone(family)(embedding_size=32, **dict(SMALL[family], dtype='float16', prelu='fast'))
    half = {name: array.astype(np.float16 if 'weight' in name else np.float32)
            for name, array in model.parameters.items()}
    exported = inference_model(SavedModel(training, half, model.statistics))
    operators = {node.op for node in Graph.of(exported.symbol).nodes}
    assert not operators & {'Dropout', '_rminus_scalar', 'Reshape'} and 'LeakyReLU' in operators
    assert 'float16' not in exported.symbol.tojson() and '__shape__' not in exported.symbol.tojson()
    assert all(array.dtype == np.float32 for array in exported.parameters.values())
    rounded = {name: array.astype(np.float32) for name, array in half.items()}
    plain = SavedModel(model.symbol, rounded, model.statistics)
    assert difference(sample_embeddings(exported, SIZE), sample_embeddings(plain, SIZE)) < 1e-6


def test_classification_layer_and_label_are_left_out(small):
    logits = mx.sym.FullyConnected(small.symbol, num_hidden=7, name='fc7')
    whole = mx.sym.SoftmaxOutput(logits, mx.sym.Variable('softmax_label'), name='softmax')
    parameters = dict(small.parameters, fc7_weight=np.zeros((7, 32), np.float32), fc7_bias=np.zeros(7, np.float32))
    exported = inference_model(SavedModel(whole, parameters, small.statistics))
    assert 'softmax_label' not in exported.symbol.list_arguments() and 'fc7_weight' not in exported.parameters
    assert difference(sample_embeddings(exported, SIZE), sample_embeddings(small, SIZE)) == 0


def test_fixed_gamma_is_saved_as_one(small):
    assert (small.parameters['fc1_gamma'] != 1).any()
    assert (inference_model(small).parameters['fc1_gamma'] == 1).all()


def test_plain_mxnet_loads_the_symbol(small, saved, tmp_path):
    assert tool('--model', saved, '--symbol', tmp_path / 'out', '--fold-bn') == 0
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(tmp_path / 'out'), 0)
    assert {array.dtype for array in arguments.values()} == {np.dtype('float32').type} and not auxiliary
    found = SavedModel(symbol, {name: array.asnumpy() for name, array in arguments.items()}, {})
    assert difference(sample_embeddings(found, SIZE), sample_embeddings(small, SIZE)) < 1e-5


def test_unknown_operator_is_named(small):
    pytest.importorskip('onnx', reason='the extra `export` is not installed')
    from common.onnx_writer import to_onnx
    odd = SavedModel(mx.sym.tanh(small.symbol, name='odd'), small.parameters, small.statistics)
    with pytest.raises(UserError, match='tanh odd: no such operator is known'):
        to_onnx(inference_model(odd, 'odd'), SIZE)


def head(folder, centers, *borders):
    folder.mkdir()
    for start, stop in zip((0,) + borders, borders + (len(centers),)):
        np.save(str(folder / class_file('centers', start, stop)), centers[start:stop])
    return folder


@pytest.mark.parametrize('row_shape', [(5,), (3, 5)])
def test_centers(row_shape, tmp_path, monkeypatch):
    monkeypatch.setattr('common.center_files.BLOCK_BYTES', 200)
    centers = np.random.RandomState(0).randn(*(101,) + row_shape).astype(np.float32)
    folder = head(tmp_path / 'model-0003.head', centers, 17, 60)
    assert tool('--head', folder, '--centers', tmp_path / 'a.npy') == 0
    assert (np.load(str(tmp_path / 'a.npy')) == centers).all()
    assert (np.load(str(tmp_path / 'a-labels.npy')) == np.arange(101)).all()
    assert tool('--model', str(tmp_path / 'model') + ',3', '--centers', tmp_path / 'b.npz', '--labels', '10-70,99') == 0
    chosen = np.r_[10:71, 99]
    with np.load(str(tmp_path / 'b.npz')) as found:
        assert (found['centers'] == centers[chosen]).all() and (found['labels'] == chosen).all()


def test_centers_need_one_block(tmp_path, monkeypatch):
    monkeypatch.setattr('common.center_files.BLOCK_BYTES', 1 << 18)
    folder = head(tmp_path / 'head', np.ones((20000, 128), np.float32), 9000)                      # 10 MB
    tracemalloc.start()
    try:
        write_centers(str(tmp_path / 'a.npz'), CenterRanges(str(folder)))
        assert tracemalloc.get_traced_memory()[1] < 4 << 18
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize('flags, code, text', [
    ([], 2, 'nothing to write'),
    (['--onnx', 'x.onnx'], 2, '--model PREFIX,EPOCH is needed'),
    (['--model', 'MODEL', '--centers', 'x.txt'], 2, 'ends with .npy or .npz'),
    (['--model', 'MODEL', '--symbol', 'OUT', '--labels', '1'], 2, '--labels: is of no use'),
    (['--model', 'MODEL', '--symbol', 'OUT', '--image-size', 'none'], 2, '--image-size none'),
    (['--model', 'MODEL,7', '--symbol', 'OUT'], 1, 'no checkpoint at'),
    (['--model', 'MODELL', '--symbol', 'OUT'], 2, 'PREFIX,EPOCH is expected'),
    (['--model', 'MODEL', '--symbol', 'MODEL', '--force'], 1, 'would replace the checkpoint'),
    (['--model', 'MODEL', '--symbol', 'OUT', '--image-size', '64x64'], 1, '--image-size'),
    (['--model', 'MODEL', '--symbol', 'OUT', '--layer', 'none'], 1, 'no layer none'),
    (['--model', 'MODEL', '--centers', 'OUT.npy'], 1, 'holds no files centers-'),
])
def test_refusals(flags, code, text, saved, tmp_path, capfd):
    names = {'MODEL': saved, 'OUT': tmp_path / 'out'}
    for name, path in names.items():
        flags = [flag.replace(name, str(path)) if flag.startswith(name) else flag for flag in flags]
    assert tool(*flags) == code
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith('error: ')]
    assert len(errors) == 1 and text in errors[0]
    assert not list(tmp_path.glob('out*'))


def test_outputs_are_replaced_with_force_only(saved, tmp_path, capsys):
    (tmp_path / 'out-symbol.json').write_text('mine')
    assert tool('--model', saved, '--symbol', tmp_path / 'out') == 1
    assert 'is there already' in capsys.readouterr().err and (tmp_path / 'out-symbol.json').read_text() == 'mine'
    assert tool('--model', saved, '--symbol', tmp_path / 'out', '--force') == 0


@pytest.mark.parametrize('content', [b'', b'{', b'{"nodes": 1}', b'[]'])
def test_damaged_symbol(content, saved, tmp_path, capfd):
    (tmp_path / 'model-symbol.json').write_bytes(content)
    assert tool('--model', saved, '--symbol', tmp_path / 'out') == 1
    assert 'is no MXNet symbol or is damaged' in capfd.readouterr().err


def test_numbers_that_are_not_finite(small, tmp_path, capfd):
    bad = dict(small.parameters, fc1_beta=np.full(32, np.nan, np.float32))
    SavedModel(small.symbol, bad, small.statistics).write(str(tmp_path / 'bad'))
    assert tool('--model', tmp_path / 'bad', '--symbol', tmp_path / 'out') == 1
    assert 'fc1_beta holds numbers that are not finite' in capfd.readouterr().err


def test_help_by_path():
    found = subprocess.run([sys.executable, str(ROOT / 'common' / 'export.py'), '--help'], capture_output=True,
                           text=True, cwd='/')
    assert found.returncode == 0 and 'example:' in found.stdout


def test_noise_is_always_the_same():
    assert (noise_images((8, 8)) == noise_images((8, 8))).all()
