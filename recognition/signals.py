"""When a training has to stop before its end: SIGTERM, SIGINT, a time limit."""
import math
import os
import signal
import threading
import time

from recognition.collective import LocalCollective

SIGNALS = signal.SIGTERM, signal.SIGINT


class Stop:
    """Asks a training to save and end after the step it is at.

    As a context: the first SIGTERM or SIGINT is noted, the second one ends the process at once. Outside the main
    thread, where Python has no signals, there is the time limit only.
    """

    def __init__(self, seconds=math.inf, began=None, clock=time.monotonic, collective=None):
        """seconds: time limit, from `began` (of the clock, None for now) on. collective: None for one process."""
        self._collective = collective or LocalCollective()
        self._clock, self._mark = clock, clock()
        self._end = (self._mark if began is None else began) + seconds
        self._longest_step, self.reserve = 0.0, 0.0
        self.signal = self.reason = None

    def __enter__(self):
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        self._mark = self._clock()
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number, _frame):
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = number

    def step_done(self):
        """Take in how long a step lasts: from begin_step (or the beginning) until now."""
        self._longest_step = max(self._longest_step, self._clock() - self._mark)

    def begin_step(self):
        self._mark = self._clock()

    def is_wanted(self, seconds=0.0):
        """Whether to stop now: there was a signal, or what comes next no longer fits before the time limit.

        All processes ask at the same time, and stop if one has a reason.

        seconds: of what comes next besides a step; `reserve` seconds are left for saving. self.reason then says why.
        """
        if self.signal is not None:
            self.reason = signal.Signals(self.signal).name
        elif self._clock() + self._longest_step + self.reserve + seconds > self._end:
            self.reason = 'the time limit'
        if self._collective.world_size > 1:
            found = self._collective.exchange([self.signal, self.reason], 'stop')
            self.signal, self.reason = next((pair for pair in found if pair[1]), (self.signal, None))
        return self.reason is not None

    @property
    def exit_code(self):
        """Of the process: 143 after SIGTERM, 130 after SIGINT, else 0."""
        return 0 if self.signal is None else 128 + self.signal
