"""When a training stops early."""
import os
import signal
import subprocess
import sys

import pytest

from recognition.signals import Stop
from recognition.training_state import SaveRule
from tests.conftest import ROOT


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize('number, code', [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_asks_for_a_stop(number, code):
    before = signal.getsignal(number)
    with Stop() as stop:
        assert not stop.is_wanted() and stop.exit_code == 0
        os.kill(os.getpid(), number)
        assert stop.is_wanted() and stop.reason == number.name and stop.exit_code == code
    assert signal.getsignal(number) == before


@pytest.mark.parametrize('number, code', [('SIGTERM', 143), ('SIGINT', 130)])
def test_the_second_signal_ends_the_process(number, code):
    program = ('import os, signal\nfrom recognition.signals import Stop\nwith Stop():\n'
               '    for _ in range(2): os.kill(os.getpid(), signal.%s)\n    os._exit(7)' % number)
    assert subprocess.run([sys.executable, '-c', program], cwd=str(ROOT), check=False).returncode == code


def test_the_time_limit_leaves_room():
    clock = Clock()
    stop = Stop(100, began=-10, clock=clock)                   # ends at 90
    stop.reserve = 20
    with stop:
        clock.now = 5
        stop.step_done()                                       # the longest step takes 5
        assert not stop.is_wanted()
        stop.begin_step()
        clock.now = 8
        stop.step_done()
        clock.now = 60
        assert stop.is_wanted(seconds=6) and stop.reason == 'the time limit'
        stop.reason = None
        assert not stop.is_wanted(seconds=4)
        clock.now = 66
        assert stop.is_wanted() and stop.exit_code == 0


def test_without_a_limit_it_goes_on():
    clock = Clock()
    stop = Stop(clock=clock)
    clock.now = 1e9
    assert not stop.is_wanted(1e9)


def test_when_states_are_due():
    clock = Clock()
    assert [step for step in range(1, 10) if SaveRule(3, clock).is_due(step)] == [3, 6, 9]
    never = SaveRule(0, clock)
    clock.now = 1e9
    assert not never.saves and not never.is_due(5)
    rule, due = SaveRule('0.5m', clock), []
    for step in range(1, 9):
        clock.now += 10
        if rule.is_due(step):
            due.append(step)
            rule.saved()
    assert due == [3, 6]
