"""Progress bars, and the rate of what is done in the end.

tqdm takes as long to import as a small set to convert, so it is imported only when there is a bar to show.
"""
import logging
import time

log = logging.getLogger('shardface')

SHOWN_AFTER = 1.0                    # seconds


def progress_bar(**settings):
    """A tqdm bar."""
    from tqdm import tqdm
    return tqdm(**settings)


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
