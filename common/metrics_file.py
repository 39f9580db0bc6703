"""The file of what was measured during a training: one JSON object per line, in the order of the steps.

Every line has "kind", "step", "epoch" and "time" (seconds since 1970); docs/seeing.md lists the rest. Numbers that are
not finite are null.
"""
import errno
import json
import logging
import math
import os
import pathlib

from common.errors import UserError
from common.files import replacing

log = logging.getLogger('shardface')


class MetricsFile:
    """Appends lines, each in one write, so that a killed process leaves at most one incomplete line, the last."""

    def __init__(self, path, step=0):
        """step: that the training goes on after; 0 for a fresh start. UserError if the file cannot be written.

        Lines beyond that step are cut off. At a fresh start the file of an earlier run becomes NAME-before.jsonl.
        """
        self._path = pathlib.Path(os.path.abspath(path))
        if self._path.exists():
            begin_anew(self._path) if step == 0 else cut(self._path, step)
        self._ended = False
        try:
            self._append(b'')
        except OSError as error:
            raise UserError('cannot write %s: %s' % (self._path, error.strerror)) from None

    def write(self, line):
        """line: dict. If it cannot be written, a warning says so and no more lines are: the training is worth more."""
        if self._ended:
            return
        try:
            self._append(json.dumps(without_nan(line), allow_nan=False).encode('ascii') + b'\n')
        except OSError as error:
            log.warning('cannot write %s: %s; it ends before step %d', self._path, error.strerror, line['step'])
            self._ended = True

    def _append(self, text):
        with open(str(self._path), 'ab', buffering=0) as stream:
            if stream.write(text) != len(text):
                raise OSError(errno.ENOSPC, 'the disk is full')

    def close(self):
        """Nothing is left open between two lines."""


def begin_anew(path):
    before = path.with_name('%s-before%s' % (path.stem, path.suffix))
    os.replace(str(path), str(before))
    log.info('%s of an earlier run is now %s', path, before.name)


def cut(path, step):
    """Leave the lines up to that step, in another file that takes the place of this one."""
    kept = [line for line in read_metrics(path) if line['step'] <= step]
    with replacing(path) as partial:
        partial.write_bytes(b''.join(json.dumps(line).encode('ascii') + b'\n' for line in kept))


def without_nan(value):
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: without_nan(entry) for name, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(path):
    """List of the lines, dicts. An incomplete last line is left out, others that are damaged too, with a warning.

    UserError if the file cannot be read.
    """
    try:
        raw = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError('cannot read %s: %s' % (os.path.abspath(str(path)), error.strerror)) from None
    complete = raw.split(b'\n')[:-1]
    lines = [line for line in map(parse, complete) if line is not None]
    if len(lines) < len(complete):
        log.warning('%s: %d of %d lines are damaged and left out', path, len(complete) - len(lines), len(complete))
    return lines


def parse(text):
    """A line's dict, None if it is damaged."""
    try:
        line = json.loads(text.decode('ascii'))
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get('step'), int) and 'kind' in line else None
