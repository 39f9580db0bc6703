"""Steps that train the class centers alone, and steps whose rate rises."""
import numpy as np
import pytest

from recognition.head import HeadShard
from tests.make_sets import identity_set
from tests.tiny import TinyIter, tiny_module
from tests.tiny_runs import saved_arrays, tiny_run, tiny_trainer


@pytest.fixture(scope='module')
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp('sets') / 'faces'
    identity_set(folder, 12, 8)
    return folder


def backbone_arrays(trainer):
    return dict(trainer.module.backbone.training_arrays())


@pytest.mark.parametrize('settings', [{}, {'num_devices': 2, 'per_batch_size': 6}, {'fp16_scale': 128},
                                      {'net_name': 'dropping', 'kvstore': 'local', 'wd': 0.1}])
def test_nothing_of_a_frozen_backbone_changes(faces, tmp_path, settings):
    before = backbone_arrays(tiny_trainer(faces, tmp_path / 'new', **settings))
    trainer = tiny_run(faces, tmp_path / 'run', max_steps=4, freeze_backbone=4, ckpt_every=2, **settings)
    for arrays in (backbone_arrays(trainer), saved_arrays(tmp_path / 'run', 2), saved_arrays(tmp_path / 'run', 4)):
        for name, array in before.items():
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    centers = [saved_arrays(tmp_path / 'run', step)['centers'] for step in (2, 4)]
    assert (centers[0] != centers[1]).all()
    trainer = tiny_run(faces, tmp_path / 'run', max_steps=5, freeze_backbone=4, resume='auto', **settings)
    after = backbone_arrays(trainer)
    assert [name for name, array in before.items() if (after[name] == array).all()] == []


def test_a_frozen_backbone_computes_as_in_inference(faces, tmp_path, monkeypatch):
    """Batch norm by its running statistics, no dropout: the head sees what embed() gives."""
    trainer = tiny_trainer(faces, tmp_path / 'run', net_name='dropping', freeze_backbone=1)
    module, seen, forward = trainer.module, [], HeadShard.forward
    monkeypatch.setattr(HeadShard, 'forward', lambda shard, unit, *others: (seen.append(unit.asnumpy()),
                                                                             forward(shard, unit, *others))[1])
    batch = next(trainer.train_iter)
    embedding = module.backbone.embed(batch.data[0].asnumpy())
    module.train_step(batch)
    unit = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    np.testing.assert_allclose(seen[0], unit, rtol=1e-5, atol=1e-6)
    module.train_step(batch)
    assert np.abs(seen[1] - unit).max() > 0.01


@pytest.mark.parametrize('num_devices', [1, 2])
def test_backbone_and_centers_warm_up(num_devices):
    rising, low = tiny_module(num_devices, lr=0.08), tiny_module(num_devices, lr=0.02)
    rising.solver.schedule.warmup = 4
    for module in (rising, low):
        module.train_step(next(TinyIter()))
    assert rising.lr == pytest.approx(0.02)
    for ours, theirs in zip((*rising.backbone.training_arrays(), *centers(rising)),
                            (*low.backbone.training_arrays(), *centers(low))):
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6, atol=1e-8, err_msg=ours[0])


def centers(module):
    return [(name, array.asnumpy()) for shard in module.head.shards for block in shard.blocks
            for name, array in block.arrays().items()]


def test_the_rate_after_the_frozen_steps_is_that_of_the_step(faces, tmp_path, caplog):
    caplog.set_level('INFO')
    trainer = tiny_run(faces, tmp_path / 'run', max_steps=6, freeze_backbone=3, warmup=5, lr=0.1, lr_steps=[5])
    rates = [record.args[5] for record in caplog.records if str(record.msg).startswith('step %d/')]
    np.testing.assert_allclose(rates, [0.02, 0.04, 0.06, 0.08, 0.1, 0.01])
    optimizer = trainer.module.backbone._module._optimizer
    assert optimizer.num_update == 6 and optimizer.learning_rate == pytest.approx(0.01)
