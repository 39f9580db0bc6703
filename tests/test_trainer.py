import logging
import re

import pytest

from common.errors import UserError
from recognition.checkpoint import CheckpointRule, Checkpoints
from recognition.loss_scale import DynamicScale
from recognition.signals import Stop
from recognition.state_folder import StateFolder
from recognition.trainer import Trainer, TrainerOptions
from recognition.training_state import SaveRule, StateSaver
from tests.tiny import TinyIter, tiny_module, tiny_symbol


class FakeValidator:
    def __init__(self, accuracies):
        self.accuracies, self.steps, self.results = list(accuracies), [], []

    def run(self, backbone, num_update):
        self.steps.append(num_update)
        return self.accuracies.pop(0) if self.accuracies else None


def trainer(tmp_path, module=None, accuracies=(), ckpt=2, **options):
    checkpoints = Checkpoints(str(tmp_path / 'model'), tiny_symbol(), CheckpointRule(ckpt))
    stop = Stop()
    saver = StateSaver(StateFolder(tmp_path / 'state'), SaveRule(0), {}, stop)
    return Trainer(module or tiny_module(), TinyIter(), FakeValidator(accuracies), checkpoints,
                   TrainerOptions(**options), saver, stop)


@pytest.mark.parametrize('options, steps', [
    ({'max_steps': 7}, 7), ({'end_epoch': 2}, 10), ({'max_steps': 7, 'end_epoch': 1}, 5),
    ({'max_steps': 3, 'end_epoch': 9}, 3), ({'max_steps': 10}, 10)])
def test_it_stops_exactly(tmp_path, options, steps):
    run = trainer(tmp_path, verbose=1000, **options)
    assert run.fit() == steps and run.module.num_update == steps
    assert run.validator.steps == [steps] and (tmp_path / 'model-0001.params').is_file()


def test_verification_every_so_many_steps_and_at_the_end_once(tmp_path):
    run = trainer(tmp_path, verbose=4, max_steps=8)
    run.fit()
    assert run.validator.steps == [4, 8]


def test_the_log_line(tmp_path, caplog):
    caplog.set_level(logging.INFO, 'shardface')
    trainer(tmp_path, frequent=5, max_steps=12).fit()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith('step ')]
    assert len(lines) == 2
    assert re.fullmatch(r'step 10/12 epoch 1 loss \d+\.\d{4} accuracy [01]\.\d{4} lr 0\.02 [\d.]+ images/s, '
                        r'waiting for data [\d.]+%', lines[1])


def test_the_log_line_of_half_precision(tmp_path, caplog):
    caplog.set_level(logging.INFO, 'shardface')
    trainer(tmp_path, module=tiny_module(loss_scale=DynamicScale(value=256)), frequent=5, max_steps=5).fit()
    assert re.search(r'waiting for data [\d.]+%, loss scale 256, 0 skipped\n', caplog.text)


def test_it_learns(tmp_path):
    run = trainer(tmp_path, module=tiny_module(2, lr=0.2), max_steps=300, frequent=10, verbose=1000)
    values = []
    run._log = lambda step, meter: values.append(meter.report(12))
    run.fit()
    assert values[0]['accuracy'] < 0.5 and values[-1]['accuracy'] > 0.9
    assert values[-1]['loss'] < 0.2 * values[0]['loss']


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(tmp_path):
    module = tiny_module()
    run = trainer(tmp_path, module=module, verbose=3, max_steps=20)
    step = module.train_step

    def break_fifth(batch, measure):
        if module.num_update == 4:
            module.head.shards[0].blocks[0].weight[:] = float('nan')
        return step(batch, measure)
    module.train_step = break_fifth
    with pytest.raises(UserError, match='loss is nan at step 5.*--lr'):
        run.fit()
    assert (tmp_path / 'model-0001.params').is_file() and not (tmp_path / 'model-0002.params').exists()


def test_a_nan_just_before_saving_is_not_saved(tmp_path):
    module = tiny_module()
    run = trainer(tmp_path, module=module, verbose=3, max_steps=20)
    step = module.train_step

    def break_third(batch, measure):
        if module.num_update == 2:
            module.head.shards[0].blocks[0].weight[:] = float('nan')
        return step(batch, measure)
    module.train_step = break_third
    with pytest.raises(UserError, match='loss is nan at step 3'):
        run.fit()
    assert not list(tmp_path.iterdir())


def test_accuracy_is_measured_five_times_per_line():
    assert sum(TrainerOptions(frequent=20).measures(step) for step in range(1, 21)) == 5
    assert sum(TrainerOptions(frequent=1).measures(step) for step in range(1, 21)) == 20
