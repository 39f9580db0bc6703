"""Class centers of an earlier training as the start of another one, with the same classes or others."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import train_parall
from common.errors import UsageError, UserError
from recognition.class_block import INIT_SCALE, initial_centers
from recognition.class_map import ClassMap, read_class_map
from recognition.settings import complete, defaults
from tests.make_sets import identity_set
from tests.tiny_runs import FLAGS, saved_arrays, state_path, tiny_run, tiny_trainer

OLD, NEW, D = 12, 20, FLAGS['emb_size']
KEPT = {3: 0, 4: 1, 9: 2, 0: 11, 11: 14, 5: 19}         # old -> new
QUIET = {'data_color': 0, 'data_rand_mirror': False}    # images as they are


@pytest.fixture(scope='module')
def sets(tmp_path_factory):
    """Folders of a set of 12 and of 20 classes."""
    folder = tmp_path_factory.mktemp('sets')
    identity_set(folder / 'old', OLD, 8)
    identity_set(folder / 'new', NEW, 6)
    return folder


@pytest.fixture(scope='module')
def earlier(sets, tmp_path_factory):
    """Results of a training of 5 steps on 2 devices."""
    folder = tmp_path_factory.mktemp('earlier') / 'run'
    tiny_run(sets / 'old', folder, num_devices=2, per_batch_size=6, max_steps=5, ckpt_every=5, net_name='plain')
    return folder


def rows(trainer, name):
    return np.concatenate([block.rows(name) for shard in trainer.module.head.shards for block in shard.blocks])


def write_map(path, pairs):
    path.write_text('# old new\n' + ''.join('%d\t%d\n' % pair for pair in pairs.items()))
    return str(path)


@pytest.mark.parametrize('num_devices', [1, 2, 3])
@pytest.mark.parametrize('named', ['head', 'state', 'prefix,epoch', 'prefix'])
def test_the_same_classes_on_any_number_of_devices(sets, earlier, tmp_path, named, num_devices):
    path = {'head': str(earlier / 'model-0001.head'), 'state': str(state_path(earlier, 5)),
            'prefix,epoch': str(earlier / 'model') + ',1', 'prefix': str(earlier / 'model')}[named]
    trainer = tiny_trainer(sets / 'old', tmp_path / 'run', num_devices, pretrained_head=path, per_batch_size=4,
                           net_name='plain')
    saved = saved_arrays(earlier, 5)
    for name in ('centers', 'momentum'):
        np.testing.assert_array_equal(rows(trainer, name), saved[name])
    assert np.abs(saved['momentum']).max() > 0


@pytest.mark.parametrize('num_devices', [1, 3])
def test_kept_classes_are_exact_and_new_ones_fresh(sets, earlier, tmp_path, num_devices, caplog):
    caplog.set_level('INFO')
    trainer = tiny_trainer(sets / 'new', tmp_path / 'run', num_devices, num_classes=NEW, net_name='plain',
                           per_batch_size=4, pretrained_head=str(state_path(earlier, 5)),
                           class_map=write_map(tmp_path / 'map.txt', KEPT))
    saved = saved_arrays(earlier, 5)
    expected = {'centers': initial_centers(0, 0, NEW, D), 'momentum': np.zeros((NEW, D), np.float32)}
    for name, values in expected.items():
        values[list(KEPT.values())] = saved[name][list(KEPT)]
        np.testing.assert_array_equal(rows(trainer, name), values)
    assert '6 classes taken, with their momentum; 14 of this training are new, 6 there are not used' in caplog.text


def test_new_classes_start_at_the_mean_of_their_images(sets, earlier, tmp_path, caplog):
    caplog.set_level('INFO')
    given_settings = dict(num_classes=NEW, net_name='plain', pretrained=str(earlier / 'model'), **QUIET)
    plain = tiny_trainer(sets / 'new', tmp_path / 'plain', **given_settings)
    embeddings, labels = [], []
    for batch in plain.train_iter:                                     # 120 images, 10 batches: all of them
        embeddings.append(plain.module.backbone.forward(batch.data[0], is_train=False).asnumpy())
        labels.append(batch.label[0].asnumpy())
    embeddings, labels = np.concatenate(embeddings).astype(np.float64), np.concatenate(labels)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    means = np.stack([unit[labels == label].mean(axis=0) for label in range(NEW)])
    means *= INIT_SCALE * D ** 0.5 / np.linalg.norm(means, axis=1, keepdims=True)

    trainer = tiny_trainer(sets / 'new', tmp_path / 'run', 2, per_batch_size=6, new_centers='mean',
                           pretrained_head=str(earlier / 'model'), class_map=write_map(tmp_path / 'map', KEPT),
                           **{name: value for name, value in given_settings.items() if name != 'per_batch_size'})
    centers, is_new = rows(trainer, 'centers'), ~np.isin(np.arange(NEW), list(KEPT.values()))
    np.testing.assert_allclose(centers[is_new], means[is_new], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(centers[~is_new], saved_arrays(earlier, 5)['centers'][
        [old for new in np.flatnonzero(~is_new) for old, value in KEPT.items() if value == new]])
    assert '14 new classes of this process start at the mean embedding of their images, 0 at random' in caplog.text


def test_all_classes_may_start_at_their_means_and_the_order_of_training_stays(sets, earlier, tmp_path):
    labels = []
    for name, way in (('one', 'random'), ('two', 'mean')):
        trainer = tiny_trainer(sets / 'new', tmp_path / name, num_classes=NEW, net_name='plain', new_centers=way,
                               pretrained=str(earlier / 'model'), sub_centers=2)
        labels.append([batch.label[0].asnumpy().tolist() for batch in trainer.train_iter])
        assert trainer.train_iter.epoch == 0
    assert labels[0] == labels[1]
    np.testing.assert_allclose(np.linalg.norm(rows(trainer, 'centers')[:, 0], axis=1), INIT_SCALE * D ** 0.5, rtol=1e-4)
    np.testing.assert_array_equal(rows(trainer, 'centers')[:, 1], initial_centers(0, 0, NEW, D, center=1))


def test_a_resumed_run_does_not_take_them_again(sets, earlier, tmp_path, caplog):
    settings = dict(pretrained_head=str(earlier / 'model'), pretrained=str(earlier / 'model'), new_centers='mean',
                    net_name='plain', ckpt_every=2)
    tiny_run(sets / 'old', tmp_path / 'run', max_steps=4, **settings)
    before = saved_arrays(tmp_path / 'run', 4)
    caplog.clear()
    caplog.set_level('INFO')
    trainer = tiny_trainer(sets / 'old', tmp_path / 'run', max_steps=6, resume='auto', **settings)
    np.testing.assert_array_equal(rows(trainer, 'centers'), before['centers'])
    assert 'classes taken' not in caplog.text and 'settings changed' in caplog.text
    assert 'pretrained' not in caplog.text


def test_momentum_that_was_not_saved_stays_zero(sets, earlier, tmp_path):
    folder = tmp_path / 'centers only'
    folder.mkdir()
    np.save(str(folder / 'centers-000000000-000000012.npy'), saved_arrays(earlier, 5)['centers'])
    trainer = tiny_trainer(sets / 'old', tmp_path / 'run', net_name='plain', pretrained_head=str(folder))
    assert not rows(trainer, 'momentum').any() and rows(trainer, 'centers').any()


# Wrong input

@pytest.mark.parametrize('settings, said', [
    ({'num_classes': NEW}, 'has 12 classes, this training has 20: say which are which by --class-map'),
    ({'emb_size': 8}, 'another embedding size'), ({'sub_centers': 3}, 'set sub_centers = 1'),
    ({'pretrained_head': '/nowhere/model,4'}, 'nor is there /nowhere/model-0004.head'),
    ({'pretrained_head': '/'}, '--pretrained-head /: neither a folder with class centers')])
def test_what_does_not_fit(sets, earlier, tmp_path, settings, said):
    flags = dict({'net_name': 'plain', 'pretrained_head': str(earlier / 'model')}, **settings)
    with pytest.raises(UserError, match=said):
        tiny_trainer(sets / ('new' if 'num_classes' in settings else 'old'), tmp_path / 'run', **flags)


def test_a_damaged_state(sets, earlier, tmp_path):
    tiny_run(sets / 'old', tmp_path / 'one', max_steps=1, ckpt_every=1, net_name='plain')
    path = next((state_path(tmp_path / 'one', 1) / 'head').glob('centers-*'))
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError, match='centers-000000000-000000012.npy is damaged'):
        tiny_trainer(sets / 'old', tmp_path / 'two', net_name='plain',
                     pretrained_head=str(state_path(tmp_path / 'one', 1)))


@pytest.mark.parametrize('text, said', [
    ('1 2\n3\n', r"map:2: two class ids, OLD NEW, are expected, not '3'"), ('a b', 'map:1: two class ids'),
    ('1 2 3', 'map:1'), ('-1 2', 'map:1'), ('1.5 2', 'map:1'),
    ('12 0', 'map:1: old class 12 does not exist: there are 12'),
    ('0 20', 'map:1: new class 20 does not exist: there are 20'),
    ('0 1\n\n# x\n2 1', 'map:4: new class 1 was given in line 1'),
    ('# nothing\n', 'maps no class'), ('9' * 30 + ' 0', 'map:1')])
def test_lines_of_a_map_that_make_no_sense(tmp_path, text, said):
    (tmp_path / 'map').write_text(text)
    with pytest.raises(UserError, match=said):
        read_class_map(str(tmp_path / 'map'), OLD, NEW)


def test_maps_that_are_no_text(tmp_path):
    (tmp_path / 'binary').write_bytes(bytes(range(256)))
    for path in (tmp_path / 'binary', tmp_path / 'nothing', tmp_path):
        with pytest.raises(UserError, match='cannot read it as text'):
            read_class_map(str(path), OLD, NEW)


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 49), max_size=40), st.integers(0, 100), st.integers(0, 100))
def test_classes_within_a_range(pairs, start, stop):
    """pairs: new -> old; one old class may become several."""
    start, stop = sorted((start, stop))
    found = ClassMap(list(pairs.values()), list(pairs)).within(start, stop)
    expected = sorted((new - start, old) for new, old in pairs.items() if start <= new < stop)
    assert list(zip(*map(list, found))) == expected


@pytest.mark.parametrize('settings, said', [({'class_map': 'x'}, 'needs pretrained_head'),
                                            ({'new_centers': 'mean'}, 'needs pretrained')])
def test_settings_that_need_another(settings, said):
    with pytest.raises(UsageError, match=said):
        complete(dict(defaults(), **settings))


def test_from_the_command_line(tmp_path, capsys):
    flags = ['--network', 'demo', '--dataset', 'casia', '--per-batch-size', '3', '--devices', 'cpu:2', '--set',
             'val_targets=', '--max-steps', '2', '--models-root', str(tmp_path / 'models')]
    for name, classes in (('old', 5), ('new', 7)):
        identity_set(tmp_path / name, classes, 4)
    assert train_parall.main([*flags, '--dataset-path', str(tmp_path / 'old')]) == 0
    prefix = str(tmp_path / 'models' / 'demo-arcface-casia' / 'model')
    flags += ['--dataset-path', str(tmp_path / 'new'), '--extra-model-name', 'more', '--pretrained', prefix,
              '--pretrained-head', prefix]
    capsys.readouterr()
    assert train_parall.main(flags) == 1
    assert '--class-map FILE' in capsys.readouterr().err
    assert train_parall.main([*flags, '--class-map', write_map(tmp_path / 'map', {4: 0, 0: 6}), '--new-centers',
                              'mean']) == 0
    log = capsys.readouterr().err
    assert '2 classes taken, with their momentum; 5 of this training are new, 3 there are not used' in log
    assert '5 new classes of this process start at the mean embedding of their images, 0 at random' in log
