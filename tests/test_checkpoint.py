import os

import numpy as np
import pytest

from common.class_rows import load_head_range
from common.errors import UserError
from common.mxnet_loader import mx
from recognition import checkpoint
from recognition.checkpoint import CheckpointRule, Checkpoints
from recognition.pretrained import load_backbone
from tests.test_parall_module import centers, curve
from tests.tiny import EMBEDDING, NUM_CLASSES, SIZE, tiny_module, tiny_symbol


@pytest.fixture
def saved(tmp_path):
    """(prefix, module) after three steps on two devices, saved as number 1."""
    module, prefix = tiny_module(2), str(tmp_path / 'model')
    curve(module, 3)
    assert Checkpoints(prefix, tiny_symbol(), CheckpointRule(2)).save(module, None) == [1]
    return prefix, module


def embed(symbol, arguments, auxiliary, images):
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([('data', images.shape)], for_training=False)
    module.set_params(arguments, auxiliary)
    for _ in range(2):
        module.forward(mx.io.DataBatch([mx.nd.array(images)]), is_train=False)
    return module.get_outputs()[0].asnumpy()


def test_plain_mxnet_loads_the_backbone(saved):
    prefix, module = saved
    images = np.random.RandomState(0).randint(0, 256, (12, 3, SIZE, SIZE)).astype(np.float32)
    symbol, arguments, auxiliary = mx.model.load_checkpoint(prefix, 1)
    assert symbol.list_outputs() == ['fc1_output'] and 'softmax_label' not in symbol.list_arguments()
    np.testing.assert_allclose(embed(symbol, arguments, auxiliary, images), module.backbone.embed(images),
                               rtol=1e-5, atol=1e-6)


def test_half_parameters_are_saved_as_float32(tmp_path):
    half = {'w': mx.nd.array([1.5, -2], dtype='float16')}
    checkpoint.save_backbone(str(tmp_path / 'm'), 3, tiny_symbol(), half, {})
    arguments, _ = load_backbone(str(tmp_path / 'm'), 3)
    assert arguments['w'].dtype == np.float32 and list(arguments['w'].asnumpy()) == [1.5, -2]


@pytest.mark.parametrize('num_devices', [1, 2, 3, 4])
def test_another_number_of_shards_reads_the_head(saved, num_devices):
    prefix, module = saved
    other = tiny_module(num_devices, seed=9)
    assert (centers(other) != centers(module)).any()
    checkpoint.load_head(checkpoint.head_folder(prefix, 1), other.head)
    np.testing.assert_array_equal(centers(other), centers(module))
    for name in ('centers', 'momentum'):
        rows = load_head_range(checkpoint.head_folder(prefix, 1), name, 3, 20)
        assert rows.shape == (17, EMBEDDING) and rows.any()


def test_the_head_is_plain_numpy_files_by_class_range(saved):
    prefix, module = saved
    names = sorted(os.listdir(checkpoint.head_folder(prefix, 1)))
    assert names == ['centers-000000000-000000012.npy', 'centers-000000012-000000023.npy',
                     'momentum-000000000-000000012.npy', 'momentum-000000012-000000023.npy']
    first = np.load(str(checkpoint.head_folder(prefix, 1) / names[0]), allow_pickle=False)
    np.testing.assert_array_equal(first, centers(module)[:12])


@pytest.mark.parametrize('num_devices', [1, 3])
def test_sub_centers_are_saved_by_class(tmp_path, num_devices):
    module, prefix = tiny_module(2, sub_centers=3), str(tmp_path / 'model')
    curve(module, 3)
    checkpoint.save_head(prefix, 1, module.head)
    folder, other = checkpoint.head_folder(prefix, 1), tiny_module(num_devices, seed=9, sub_centers=3)
    for name in ('centers', 'momentum'):
        rows = load_head_range(folder, name, 0, NUM_CLASSES)
        assert rows.shape == (NUM_CLASSES, 3, EMBEDDING)
        np.testing.assert_array_equal(rows, by_class(module, name))
        assert (by_class(other, name) != rows).any()
    np.testing.assert_array_equal(rows[1, 2], module.head.shards[0].blocks[0].momentum[2 * 4 + 1].asnumpy())
    checkpoint.load_head(folder, other.head)
    for name in ('centers', 'momentum'):
        np.testing.assert_array_equal(by_class(other, name), by_class(module, name))


def by_class(module, name):
    return np.concatenate([block.rows(name) for shard in module.head.shards for block in shard.blocks])


@pytest.mark.parametrize('saved_count, count', [(1, 3), (3, 1), (3, 2)])
def test_another_number_of_sub_centers_is_refused(tmp_path, saved_count, count):
    checkpoint.save_head(str(tmp_path / 'model'), 1, tiny_module(sub_centers=saved_count).head)
    message = 'saved with %d sub-centers per class, this training has %d: set sub_centers = %d'
    with pytest.raises(UserError, match=message % (saved_count, count, saved_count)):
        checkpoint.load_head(tmp_path / 'model-0001.head', tiny_module(sub_centers=count).head)


def test_another_embedding_size_is_refused(tmp_path):
    checkpoint.save_head(str(tmp_path / 'model'), 1, tiny_module(sub_centers=2).head)
    folder = tmp_path / 'model-0001.head'
    for path in list(folder.iterdir()):
        np.save(str(path), np.load(str(path))[:, :, :7])
    with pytest.raises(UserError, match='another embedding size'):
        checkpoint.load_head(folder, tiny_module(sub_centers=2).head)


def test_a_missing_range_is_named(saved):
    folder = checkpoint.head_folder(saved[0], 1)
    (folder / 'centers-000000012-000000023.npy').unlink()
    with pytest.raises(UserError, match='no centers of class 12'):
        load_head_range(folder, 'centers', 0, NUM_CLASSES)


def test_what_a_killed_run_left_is_removed(saved):
    prefix, module = saved
    for name in ('.model-0001.params.7.partial', '.model-0001.head.7.old.partial'):
        (checkpoint.head_folder(prefix, 1).parent / name).touch()
    Checkpoints(prefix, tiny_symbol(), CheckpointRule(2)).save(module, None)
    assert not list(checkpoint.head_folder(prefix, 1).parent.glob('.*'))


def numbers(ckpt, accuracies):
    rule = CheckpointRule(ckpt)
    return [rule.numbers(accuracy) for accuracy in accuracies] + [rule.numbers(accuracies[-1], final=True)]


def test_when_to_save():
    accuracies = [0.6, 0.5, 0.7]
    assert numbers(0, accuracies) == [[], [], [], []]
    assert numbers(1, accuracies) == [[1], [], [2], [3]]
    assert numbers(2, accuracies) == [[1], [2], [3], [4]]
    assert numbers(3, accuracies) == [[0, 1], [0], [0, 1], [0]]
    assert numbers(1, [None, None]) == [[1], [2], [3]]          # no verification set: saved all the same
    assert numbers(3, [None, None]) == [[0, 1], [0, 1], [0, 1]]
