"""What a training measures, passed on line by line: to a file, to TensorBoard, to the bar on the terminal."""
import time

from common.memory import resident
from common.metrics_file import MetricsFile
from common.mxnet_loader import mx
from recognition.events import Events
from recognition.training_state import versions

MEBIBYTE = 1 << 20


class Recorder:
    """Hands every line to all sinks, objects with write(line) and close(). Only rank 0 has any."""

    def __init__(self, sinks=()):
        self._sinks, self.bar = list(sinks), None

    def show(self, bar):
        """bar: a sink that also has step(), called for every step."""
        self.bar = bar
        self._sinks.append(bar)

    def step(self):
        if self.bar is not None:
            self.bar.step()

    def write(self, kind, step, epoch, values):
        """One line, see docs/seeing.md; values: dict of what JSON holds."""
        line = dict(kind=kind, step=step, epoch=epoch, time=round(time.time(), 3), **values)
        for sink in self._sinks:
            sink.write(line)

    def close(self):
        for sink in self._sinks:
            sink.close()


def make_recorder(cfg, prefix, trainer, plan):
    """Recorder of a Trainer that is about to begin, or to go on. plan: lines. UserError. No collectives."""
    module = trainer.module
    collective, step = module.head.collective, module.num_update
    if collective.rank:
        return Recorder()
    sinks = [MetricsFile('%s-metrics.jsonl' % prefix, step)]
    if cfg.tensorboard:
        sinks.append(Events('%s-events' % prefix, step))
    recorder = Recorder(sinks)
    recorder.write('run', step, trainer.train_iter.epoch, {
        'processes': collective.world_size, 'devices': [str(context) for context in module.backbone.contexts],
        'images_per_step': module.backbone.embed_batch_size, 'batches_per_epoch': trainer.train_iter.batches_per_epoch,
        'versions': versions(), 'plan': plan})
    return recorder


def train_values(module, values):
    """values: of Meter.report -> what the line of an interval holds beside step, epoch and time."""
    scale = module.backbone.loss_scale
    found = dict(values, lr=module.lr, memory_mib=round((resident('VmHWM') or 0) / MEBIBYTE, 1))
    if scale is not None:
        found.update(loss_scale=scale.value, skipped_steps=scale.num_skipped)
    gpus = [context.device_id for context in module.backbone.contexts if context.device_type == 'gpu']
    if gpus:
        found['gpu_memory_mib'] = max(round(used_gpu_memory(number) / MEBIBYTE, 1) for number in gpus)
    return found


def used_gpu_memory(number):
    """Bytes that are taken on a GPU; MXNet gives none back, so its own share of them is its peak."""
    free, total = mx.context.gpu_memory_info(number)
    return total - free


def verification_values(name, result, seconds):
    """VerificationResult of the set `name` -> what its line holds beside step, epoch and time."""
    return dict(result.figures(), set=name, seconds=seconds)
