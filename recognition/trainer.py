"""The loop: batches, steps, log lines, verification, saving, the stop."""
import contextlib
import logging
import math
import time

from common.errors import UserError
from common.logs import FINAL
from recognition.recorder import Recorder, train_values, verification_values

log = logging.getLogger('shardface')

MEGABYTE = 1e6
SAMPLES = 5               # steps per log line on which accuracy and its like are measured: a pass over the logits


class TrainerOptions:
    """frequent: steps between log lines; verbose: steps between verifications; max_steps, end_epoch: the
    stop, whichever comes first, 0 or None for none; accumulate: batches per step."""

    def __init__(self, frequent=20, verbose=2000, max_steps=0, end_epoch=0, accumulate=1):
        self.frequent, self.verbose = max(1, frequent), max(1, verbose)
        self.accumulate = accumulate
        self.max_steps, self.end_epoch = max_steps or math.inf, end_epoch or math.inf

    def total_steps(self, batches_per_epoch):
        """Steps of the whole run; infinite if nothing stops it."""
        return min(self.max_steps, self.end_epoch * batches_per_epoch // self.accumulate)

    def measures(self, step):
        """Whether accuracy, norms and cosines are measured on this step."""
        return step % self.frequent % max(1, self.frequent // SAMPLES) == 0


class Meter:
    """Loss and measures of the steps since the last log line.

    Values are read one step late, so that reading one does not wait for the step that was just begun.
    """

    def __init__(self, train_iter, collective):
        self._train_iter, self._collective, self._pending = train_iter, collective, None
        self._restart()

    def _restart(self):
        self._losses, self._measures = [], {}
        self._begin, self._waited = time.monotonic(), self._train_iter.wait_seconds
        self._sent = self._collective.sent_bytes

    def add(self, step, statistics):
        """Take in a step that was begun. UserError if the loss of the step before is not finite."""
        loss = statistics.loss()
        self.settle()
        self._pending = step, loss, statistics.measures

    def settle(self):
        """Wait for the last step and check its loss."""
        if self._pending is None:
            return
        step, loss, measures = self._pending
        self._pending = None
        loss = float(loss.asscalar())
        if not math.isfinite(loss):
            raise UserError('loss is %s at step %d: training stopped, nothing was saved since; lower --lr or '
                            'start from an earlier checkpoint' % (loss, step))
        self._losses.append(loss)
        for name, array in measures.items():
            self._measures.setdefault(name, []).append(float(array.asscalar()))

    def report(self, images_per_step):
        """Means since the last report, as a dict; images_per_step counts all devices and processes."""
        self.settle()
        seconds = max(time.monotonic() - self._begin, 1e-9)
        waited = self._train_iter.wait_seconds - self._waited
        values = {'loss': mean(self._losses), 'accuracy': math.nan,
                  **{name: mean(measured) for name, measured in self._measures.items()},
                  'images_per_second': len(self._losses) * images_per_step / seconds,
                  'wait_share': min(1.0, waited / seconds),
                  'sent_megabytes': (self._collective.sent_bytes - self._sent) / max(1, len(self._losses)) / MEGABYTE}
        self._restart()
        return values


def mean(values):
    return sum(values) / len(values) if values else math.nan


class Trainer:
    """Drives a ParallModule over an image iterator until max_steps or end_epoch, or a Stop."""

    def __init__(self, module, train_iter, validator, checkpoints, options, saver, stop):
        """saver: StateSaver. stop: Stop."""
        self.module, self.train_iter, self.options = module, train_iter, options
        self.validator, self.checkpoints, self.saver, self.stop = validator, checkpoints, saver, stop
        self.total_steps = options.total_steps(train_iter.batches_per_epoch)
        self.verified_at, self._verify_seconds = 0, 0.0
        self.recorder = Recorder()

    def fit(self):
        """Train to the end, verify and save once more; returns the number of updates.

        When self.stop wants it, it ends earlier: with the step that it is at, and a training state.
        """
        meter = Meter(self.train_iter, self.module.head.collective)
        with self.stop, contextlib.closing(self.recorder):
            self._verify_if_due(meter)                         # if a stop came before it
            for batch in self._batches():
                self._step(batch, meter)
                self._verify_if_due(meter)
                if self.saver.is_due(self.module.num_update):
                    meter.settle()
                    self.saver.save(self)
                if self.stop.is_wanted():
                    break
                self.stop.begin_step()
            meter.settle()
            self.saver.save(self)
            if self.stop.reason:
                log.warning('stopped by %s after step %d', self.stop.reason, self.module.num_update)
            else:
                self._finish()
        return self.module.num_update

    def _step(self, batch, meter):
        step = self.module.num_update + 1
        meter.add(step, self.module.train_step(batch, self.options.measures(step)))
        if step % self.options.frequent == 0:
            self._log(step, meter)
        self.recorder.step()
        self.stop.step_done()

    def _finish(self):
        if self.verified_at != self.module.num_update:
            self._verify_and_save(self.module.num_update, final=True)
        verified = ''.join(', %s %.4f' % (name, result.accuracy_flip) for name, result, _ in self.validator.results)
        log.info('done: %d steps%s', self.module.num_update, verified, extra=FINAL)

    def _verify_if_due(self, meter):
        step = self.module.num_update
        if step and step % self.options.verbose == 0 and step != self.verified_at \
                and not self.stop.is_wanted(self._verify_seconds):
            meter.settle()
            self._verify_and_save(step, final=step == self.total_steps)

    def _batches(self):
        """What each step needs, up to the stop: a batch, or several as one, of epoch after epoch."""
        while self.module.num_update < self.total_steps:       # no batch is taken that is not used: a state counts them
            batch = self._next_batch()
            for _ in range(1, self.options.accumulate):
                more = self._next_batch()
                batch.data, batch.label = batch.data + more.data, batch.label + more.label
            yield batch

    def _next_batch(self):
        batch = next(self.train_iter, None)
        if batch is None:
            self.train_iter.reset()
            batch = next(self.train_iter)
        return batch

    def _log(self, step, meter):
        processes = self.module.head.collective.world_size
        rows = self.train_iter.batch_size * processes * self.options.accumulate
        values = meter.report(rows)
        scale = self.module.backbone.loss_scale
        log.info('step %d/%s epoch %d loss %.4f accuracy %.4f lr %.3g %.1f images/s, waiting for data %.1f%%%s%s',
                 step, self.total_steps, self.train_iter.epoch, values['loss'], values['accuracy'],
                 self.module.lr, values['images_per_second'], 100 * values['wait_share'],
                 '' if scale is None else ', %s' % scale,
                 '' if processes == 1 else ', %.2f MB sent per step' % values['sent_megabytes'])
        self.recorder.write('train', step, self.train_iter.epoch, train_values(self.module, values))

    def _verify_and_save(self, step, final):
        begin, self.verified_at = time.monotonic(), step
        accuracy = self.validator.run(self.module.backbone, step)
        for one in self.validator.results:
            self.recorder.write('verification', step, self.train_iter.epoch, verification_values(*one))
        self.checkpoints.save(self.module, accuracy, final)
        self._verify_seconds = time.monotonic() - begin
