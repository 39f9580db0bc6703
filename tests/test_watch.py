"""The watch over the processes of a job, its ends played by threads and plain sockets."""
import contextlib
import logging
import socket
import threading
import time

import pytest

from recognition.watch import Timing, Watch, own_addresses

QUICK = Timing(beat=0.05, late=0.4, lost=1.2, grace=0.2, connect=3.0)


class Exchange:
    """A collective of several threads that can only exchange."""

    def __init__(self, world_size):
        self._barrier, self._values = threading.Barrier(world_size), [None] * world_size
        self.world_size = world_size

    def of(self, rank):
        outer = self

        class One:
            world_size = outer.world_size

            def exchange(self, value, _name):
                outer._values[rank] = value
                outer._barrier.wait(10)
                values = list(outer._values)
                outer._barrier.wait(10)
                return values
        one = One()
        one.rank = rank
        return one


class Job:
    """Watches of so many ranks; ends: {rank: message}. plain: a rank that is a mere socket, or None."""

    def __init__(self, world_size, plain=None):
        self.exchange, self.ends, self.watches = Exchange(world_size), {}, {}
        self.socket = None
        threads = [threading.Thread(target=self._knock if rank == plain else self._start, args=(rank,))
                   for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _start(self, rank):
        self.watches[rank] = Watch(self.exchange.of(rank), QUICK, lambda text: self.ends.setdefault(rank, text))

    def _knock(self, rank):
        one = self.exchange.of(rank)
        addresses, port, token = one.exchange(None, 'watch')[0]
        self.socket = socket.create_connection((addresses[0], port))
        self.socket.sendall(('%s %d\n' % (token, rank)).encode())
        one.exchange(True, 'watching')

    def crash(self, rank):
        """What the system does with the connections of a process that is killed, which itself says no more."""
        self.watches[rank]._tell = lambda line: None
        for peer in list(self.watches[rank]._peers.values()):
            peer.socket.shutdown(socket.SHUT_RDWR)

    def wait_for(self, ranks, seconds=5):
        deadline = time.monotonic() + seconds
        while set(self.ends) != set(ranks) and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.ends

    def close(self):
        for watch in self.watches.values():
            watch.close()


@pytest.mark.parametrize('order', [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_processes_that_take_leave_end_nobody(order):
    job = Job(3)
    for rank in order:
        job.watches[rank].close()
        time.sleep(0.15)
    assert job.ends == {} and [job.watches[rank].ended for rank in range(3)] == [None] * 3


@pytest.mark.parametrize('killed', [0, 2])
def test_all_learn_who_ended(killed):
    job = Job(3)
    job.crash(killed)
    others = [rank for rank in range(3) if rank != killed]
    ends = job.wait_for(range(3))
    for rank in others:
        assert ends[rank] == 'rank %d lost the other processes: rank %d ended, and its own message says why' % (
            rank, killed)
        assert job.watches[rank].wait_for_end(0) == killed


def test_a_process_that_ends_by_itself_in_time_says_its_own_message():
    """Horovod fails in it too, and what it says is better."""
    job = Job(2)
    job.crash(1)
    assert job.watches[0].wait_for_end(3) == 1
    job.close()
    assert 0 not in job.ends


def test_a_silent_rank_is_named_and_then_lost(caplog):
    caplog.set_level(logging.WARNING)
    job = Job(3, plain=2)
    deadline = time.monotonic() + 3
    while 'rank 2 has given no sign of life' not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    assert caplog.text.count('no sign of life for 0 s: it was stopped') == 1 and job.ends == {}
    job.socket.sendall(b'beat\n')
    time.sleep(0.2)
    assert 'rank 2 gives signs of life again' in caplog.text
    assert 'rank 2 ended' in job.wait_for([0, 1])[1]
    job.socket.close()


def test_strangers_who_knock_are_not_taken_for_a_rank():
    exchange, watches = Exchange(2), {}

    def other():
        one = exchange.of(1)
        addresses, port, token = one.exchange(None, 'watch')[0]
        for line in (b'GET / HTTP/1.1\r\n\r\n', b'\xff\xfe\n', b'%s x\n' % token.encode(), b'wrong 1\n'):
            with contextlib.suppress(OSError), socket.create_connection((addresses[0], port)) as knocking:
                knocking.sendall(line)
        one.exchange(False, 'watching')
    thread = threading.Thread(target=other)
    thread.start()
    watches[0] = Watch(exchange.of(0), QUICK._replace(connect=2.0))
    thread.join()
    assert watches[0]._peers == {}
    watches[0].close()


def test_without_a_connection_there_is_a_warning_and_no_watch(caplog, monkeypatch):
    monkeypatch.setattr('recognition.watch.own_addresses', lambda: ['192.0.2.1'])
    monkeypatch.setattr('recognition.watch.socket.create_connection', refuse)
    job = Job(2)
    assert caplog.text.count('out of reach of some processes except through Horovod') == 2
    job.close()


def refuse(*_arguments, **_options):
    raise ConnectionRefusedError


def test_addresses_end_with_the_loopback():
    assert own_addresses()[-1] == '127.0.0.1' and len(set(own_addresses())) == len(own_addresses())
