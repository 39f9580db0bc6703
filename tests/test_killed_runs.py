"""Processes that are killed, interrupted or out of time, and what the next one makes of it."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.make_sets import identity_set
from tests.tiny_runs import saved_arrays, state_path

KILLS = int(os.environ.get('SHARDFACE_KILLS', '5'))
CHILD = '''
import json, sys, pathlib
from common.logs import logging_to_console
from tests.tiny_runs import tiny_run
with logging_to_console():
    trainer = tiny_run(sys.argv[1], pathlib.Path(sys.argv[2]), resume='auto', max_steps=int(sys.argv[3]),
                       ckpt=3, verbose=7, num_devices=2, per_batch_size=6, **json.loads(sys.argv[4]))
sys.exit(trainer.stop.exit_code)
'''


@pytest.fixture
def start(tmp_path):
    """Begin a run in a process of its own; its log goes to tmp_path/log."""
    path = identity_set(tmp_path / 'set', 12, 9)
    environment = dict(os.environ, OMP_NUM_THREADS='1')

    def call(name, max_steps, **settings):
        with open(str(tmp_path / 'log'), 'w') as log:
            return subprocess.Popen([sys.executable, '-c', CHILD, os.path.dirname(path), str(tmp_path / name),
                                     str(max_steps), json.dumps(settings)], cwd=str(ROOT), stderr=log, env=environment)
    return call


def log_of(tmp_path):
    return (tmp_path / 'log').read_text()


def wait_for_step(tmp_path, process, step):
    """Until that step is in the log."""
    while not re.search(r'step %d/' % step, log_of(tmp_path)):
        assert process.poll() is None, log_of(tmp_path)
        time.sleep(0.01)


def final_weights(folder):
    """Bytes of everything that was saved at the end for use, and the last training state."""
    files = [folder / 'model-0000.params', *sorted((folder / 'model-0000.head').iterdir())]
    return [file.read_bytes() for file in files]


def assert_same_end(ours, theirs, step):
    assert final_weights(ours) == final_weights(theirs)
    arrays = saved_arrays(theirs, step)
    for name, values in saved_arrays(ours, step).items():
        np.testing.assert_array_equal(values, arrays[name], err_msg=name)


def test_killed_at_any_moment_it_reaches_the_same_weights(tmp_path, start):
    steps, chance, kills = 12 * KILLS, random.Random(7), 0
    assert start('whole', steps, ckpt_every=1).wait(timeout=300) == 0, log_of(tmp_path)
    while kills < KILLS:
        newest = max([int(path.name[5:]) for path in tmp_path.glob('killed/model-state/step-*')], default=0)
        if newest >= steps - 1:
            break
        process = start('killed', steps, ckpt_every=1)
        wait_for_step(tmp_path, process, newest + 1)
        time.sleep(chance.random() * 0.15)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    assert kills > KILLS // 2
    assert start('killed', steps, ckpt_every=1).wait(timeout=300) == 0, log_of(tmp_path)
    assert 'resumed from' in log_of(tmp_path) and 'cannot be used' not in log_of(tmp_path)
    assert_same_end(tmp_path / 'killed', tmp_path / 'whole', steps)
    assert not list((tmp_path / 'killed').rglob('.*.partial'))


@pytest.mark.parametrize('number, code', [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_ends(tmp_path, start, number, code):
    process = start('run', 100000, ckpt_every=100000)
    wait_for_step(tmp_path, process, 3)
    process.send_signal(number)
    assert process.wait(timeout=120) == code, log_of(tmp_path)
    step = int(re.search(r'stopped by %s after step (\d+)' % number.name, log_of(tmp_path)).group(1))
    assert state_path(tmp_path / 'run', step).is_dir() and re.search(r'saved training state .* MB in', log_of(tmp_path))
