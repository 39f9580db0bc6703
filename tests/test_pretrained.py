"""Starting the backbone from checkpoints, published models and training states."""
import numpy as np
import pytest

from common.errors import UserError
from common.mxnet_loader import mx
from recognition.backbone import Backbone
from recognition.checkpoint import save_backbone
from recognition.pretrained import fixed_gammas, load_backbone, take_pretrained, with_epoch
from symbols import get_backbone
from tests.make_sets import identity_set
from tests.test_parall_module import curve
from tests.tiny import tiny_module, tiny_symbol
from tests.tiny_runs import state_path, tiny_run, tiny_trainer


@pytest.fixture
def saved(tmp_path):
    """(prefix, module) after three steps, saved as number 1."""
    module, prefix = tiny_module(2), str(tmp_path / 'model')
    curve(module, 3)
    save_backbone(prefix, 1, tiny_symbol(), *module.backbone.parameters())
    return prefix, module


def assert_equal_parameters(ours, theirs):
    for our_part, their_part in zip(ours.parameters(), theirs.parameters()):
        assert our_part.keys() == their_part.keys()
        for name in their_part:
            np.testing.assert_array_equal(our_part[name].asnumpy(), their_part[name].asnumpy(), err_msg=name)


def test_what_fits_is_taken(saved, caplog):
    prefix, module = saved
    other = tiny_module(1, seed=5)
    caplog.set_level('INFO')
    take_pretrained(other.backbone, prefix + ',1', 7)
    assert_equal_parameters(other.backbone, module.backbone)
    assert '3 parameters taken (conv_weight, fc1_weight, fc1_bias); 0 re-initialised; 0 of the file skipped' \
        in caplog.text


def test_what_does_not_fit_is_listed(saved, tmp_path, caplog):
    arguments, _ = load_backbone(saved[0], 1)
    arguments['conv_weight'] = mx.nd.zeros((4, 3, 3, 3))
    arguments['extra'] = mx.nd.zeros((1,))
    del arguments['fc1_bias']
    save_backbone(str(tmp_path / 'odd'), 0, tiny_symbol(), arguments, {'mean_%d' % n: mx.nd.ones(1) for n in range(9)})
    caplog.set_level('INFO')
    new, backbone = tiny_module(seed=3).backbone, tiny_module(seed=3).backbone
    take_pretrained(backbone, str(tmp_path / 'odd'), 0)
    assert '1 parameters taken (fc1_weight); 2 re-initialised (conv_weight: (4, 3, 3, 3) in the file, (8, 3, 3, 3) ' \
        'here, fc1_bias); 10 of the file skipped (extra, mean_0, mean_1, mean_2, mean_3, mean_4, ...)' in caplog.text
    assert caplog.records[-1].levelname == 'WARNING'                       # most of the network is new
    for name in ('conv_weight', 'fc1_bias'):
        np.testing.assert_array_equal(backbone.parameters()[0][name].asnumpy(), new.parameters()[0][name].asnumpy())


def test_files_that_are_not_there_or_not_ours(saved, tmp_path):
    backbone = tiny_module().backbone
    with pytest.raises(UserError, match='no checkpoint at .*none-0001.params.*--pretrained'):
        take_pretrained(backbone, str(tmp_path / 'none'), 1)
    with pytest.raises(UserError, match='no checkpoint at .*model-0002.params'):
        take_pretrained(backbone, saved[0] + ',2', 1)
    (tmp_path / 'junk-0001.params').write_bytes(b'not a parameter file at all')
    with pytest.raises(UserError, match='junk-0001.params is not an MXNet parameter file'):
        take_pretrained(backbone, str(tmp_path / 'junk'), 1)
    mx.nd.save(str(tmp_path / 'other-0001.params'), {'arg:w': mx.nd.zeros((2,))})
    with pytest.raises(UserError, match=r'fits no parameter of this network \(conv_weight, .*another --network'):
        take_pretrained(backbone, str(tmp_path / 'other'), 1)
    mx.nd.save(str(tmp_path / 'list-0001.params'), [mx.nd.zeros((2,))])
    mx.nd.save(str(tmp_path / 'kind-0001.params'), {'weight': mx.nd.zeros((2,))})
    for name, said in (('list', 'not an MXNet parameter file'), ('kind', 'names start with arg: or aux:')):
        with pytest.raises(UserError, match=said):
            take_pretrained(backbone, str(tmp_path / name), 1)
    with pytest.raises(UserError, match='no training state in this folder'):
        take_pretrained(backbone, str(tmp_path), 1)


def test_numbers_that_are_not_finite(saved, tmp_path):
    arguments, _ = load_backbone(saved[0], 1)
    arguments['fc1_bias'][3] = np.nan
    save_backbone(str(tmp_path / 'bad'), 0, tiny_symbol(), arguments, {})
    with pytest.raises(UserError, match='bad-0000.params: fc1_bias is not finite'):
        take_pretrained(tiny_module().backbone, str(tmp_path / 'bad'), 0)


def test_a_cut_file(saved, tmp_path):
    whole = (tmp_path / 'model-0001.params').read_bytes()
    for size in [0, 1, 8, 24, 30, 100, len(whole) // 2, len(whole) - 1]:
        (tmp_path / 'cut-0001.params').write_bytes(whole[:size])
        with pytest.raises(UserError, match='cut-0001.params is not an MXNet parameter file or is damaged'):
            load_backbone(str(tmp_path / 'cut'), 1)


def test_a_number_after_the_prefix():
    assert with_epoch('a/model,12', 1) == ('a/model', 12) and with_epoch('a,b/model', 3) == ('a,b/model', 3)
    assert with_epoch('model, 0000', 1) == ('model', 0) and with_epoch('model,x', 1) == ('model,x', 1)


def test_a_gamma_that_counts_as_one_is_taken_as_one(tmp_path):
    """fix_gamma is the default of batch norm, and what is saved under its name then means nothing."""
    def network(**settings):
        return mx.sym.FullyConnected(mx.sym.BatchNorm(mx.sym.Cast(mx.sym.Variable('data'), dtype='float32'),
                                                      name='bn', **settings), num_hidden=4, name='fc1')
    fixed, free = (Backbone(symbol, [mx.cpu()], 2, (3, 4, 4), 0)
                   for symbol in (network(), network(fix_gamma=False)))
    arguments, auxiliary = fixed.parameters()
    arguments['bn_gamma'][:] = 5
    images = np.random.RandomState(0).randint(0, 256, (2, 3, 4, 4)).astype(np.uint8)
    save_backbone(str(tmp_path / 'a'), 1, network(), arguments, auxiliary)
    take_pretrained(free, str(tmp_path / 'a'), 1)
    np.testing.assert_allclose(free.embed(images), fixed.embed(images), rtol=1e-5)
    save_backbone(str(tmp_path / 'a'), 1, network(fix_gamma=False), arguments, auxiliary)
    take_pretrained(free, str(tmp_path / 'a'), 1)
    assert (free.parameters()[0]['bn_gamma'].asnumpy() == 5).all()


@pytest.mark.parametrize('text', ['', '[]', '{"nodes": 3}', '{"nodes": [{"op": "BatchNorm", "inputs": [[0]]}]}',
                                  '{"nodes": [3]}', '[' * 100000])
def test_a_damaged_symbol(tmp_path, text):
    (tmp_path / 'a-symbol.json').write_text(text)
    with pytest.raises(UserError, match='a-symbol.json is no MXNet symbol or is damaged'):
        fixed_gammas(str(tmp_path / 'a-symbol.json'))


def test_a_training_state_is_a_start(tmp_path, caplog):
    caplog.set_level('INFO')
    identity_set(tmp_path / 'set', 12, 4)
    trained = tiny_run(tmp_path / 'set', tmp_path / 'run', 2, max_steps=3, per_batch_size=6)
    path = state_path(tmp_path / 'run', 3)
    trainer = tiny_trainer(tmp_path / 'set', tmp_path / 'new', pretrained=str(path))
    assert '; 0 re-initialised; 0 of the file skipped' in caplog.text
    ours, theirs = (dict(list(part.items())) for part in trainer.module.backbone.parameters()), \
        trained.module.backbone.parameters()
    for our_part, their_part in zip(ours, theirs):
        for name in their_part:
            np.testing.assert_allclose(our_part[name].asnumpy(), their_part[name].asnumpy(), rtol=1e-6, err_msg=name)
    data = bytearray((path / 'backbone.npz').read_bytes())
    data[len(data) // 2] ^= 1
    (path / 'backbone.npz').write_bytes(bytes(data))
    with pytest.raises(UserError, match='backbone.npz is damaged: its SHA-256'):
        tiny_trainer(tmp_path / 'set', tmp_path / 'new', pretrained=str(path))


def test_the_published_y1(shared_data, caplog):
    caplog.set_level('INFO')
    backbone = Backbone(get_backbone('fmobilefacenet')(embedding_size=128, prelu='fast'), [mx.cpu()], 2, (3, 112, 112),
                        0)
    take_pretrained(backbone, '%s,0' % (shared_data / 'models' / 'y1'), 1)
    assert '284 parameters taken' in caplog.text and '; 0 re-initialised; 0 of the file skipped' in caplog.text
    other = Backbone(get_backbone('fmobilefacenet')(embedding_size=64), [mx.cpu()], 2, (3, 112, 112), 0)
    take_pretrained(other, str(shared_data / 'models' / 'y1'), 0)
    assert '278 parameters taken' in caplog.text
    assert '6 re-initialised (fc1_weight: (128, 512) in the file, (64, 512) here, ' in caplog.text
