"""Progress bars, and the rate of what is done in the end.

tqdm takes as long to import as a small set to convert, so it is imported only when there is a bar to show.
"""
import contextlib
import logging
import math
import time

log = logging.getLogger('shardface')

SHOWN_AFTER = 1.0                    # seconds
BAR = '{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}'


def progress_bar(**settings):
    """A tqdm bar."""
    from tqdm import tqdm
    return tqdm(**settings)


class StepBar:
    """The steps of a training on one line of the terminal, with time left and what was measured last.

    From the first step to close(), lines of the log are written above it.
    """

    def __init__(self, step, total):
        """step: that the training goes on after; total: infinite if nothing stops it."""
        self._step, self._total = step, None if math.isinf(total) else total
        self._stack, self._bar, self._seen = contextlib.ExitStack(), None, {}

    def step(self):
        """One more step was begun."""
        if self._bar is None:
            from tqdm.contrib.logging import logging_redirect_tqdm
            self._bar = self._stack.enter_context(progress_bar(
                initial=self._step, total=self._total, desc='training', unit=' steps', dynamic_ncols=True,
                bar_format=BAR if self._total else None))
            self._stack.enter_context(logging_redirect_tqdm([log]))
            self._show()
        self._bar.update()

    def write(self, line):
        """A line of recognition.recorder.Recorder."""
        if line['kind'] == 'train':
            self._seen.update(loss='loss %.4f' % line['loss'], speed='%.1f images/s' % line['images_per_second'],
                              wait='waiting %.0f%%' % (100 * line['wait_share']))
        elif line['kind'] == 'verification':
            self._seen[line['set']] = '%s %.4f' % (line['set'], line['accuracy_flip'])
        self._show()

    def _show(self):
        if self._bar is not None:
            self._bar.set_postfix_str(', '.join(self._seen.values()), refresh=False)

    def close(self):
        self._stack.close()


class Progress:
    """Bytes and records that are done of a long task: a bar with records/s, MB/s and time left; a line in the end."""

    def __init__(self, title, total):
        """total: bytes."""
        self._title, self._total, self._bar = title, total, None
        self._begin, self._records, self._size = time.monotonic(), 0, 0

    def __enter__(self):
        return self

    def __exit__(self, error_type, *error):
        if self._bar is not None:
            self._bar.close()
        if error_type is None:
            seconds = self._seconds()
            log.info('%s: %d records, %.0f MB in %.1f s; %.0f records/s, %.0f MB/s', self._title, self._records,
                     self._size / 1e6, seconds, self._records / seconds, self._size / 1e6 / seconds)

    def _seconds(self):
        return max(time.monotonic() - self._begin, 1e-9)

    def advance(self, records, size):
        """So many more records, and bytes, are done."""
        self._records += records
        self._size += size
        seconds = self._seconds()
        if self._bar is None and seconds > SHOWN_AFTER:
            self._bar = progress_bar(total=self._total, desc=self._title, unit='B', unit_scale=True, leave=True)
            size = self._size
        if self._bar is not None:
            self._bar.set_postfix_str('%d records, %.0f records/s' % (self._records, self._records / seconds),
                                      refresh=False)
            self._bar.update(size)
