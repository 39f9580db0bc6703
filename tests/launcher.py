"""Starts the processes of a job on this machine as horovodrun does, without ssh: the environment that Horovod's Gloo
wants, and the small HTTP store by which its processes find each other."""
import contextlib
import http.server
import importlib.util
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.conftest import ROOT

needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec('horovod') is None,
    reason='Horovod is not installed here: python -m recognition.install_horovod')
LAUNCHER_NAMES = 'HOROVOD_', 'OMPI_', 'PMI_', 'OMP_NUM_THREADS'


class StoreHandler(http.server.BaseHTTPRequestHandler):
    """PUT, GET and DELETE of values by path."""

    def do_PUT(self):
        self.server.values[self.path] = self.rfile.read(int(self.headers['Content-Length']))
        self._answer(200)

    def do_GET(self):
        value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b'')

    def do_DELETE(self):
        self._answer(200)

    def _answer(self, code, body=b''):
        self.send_response(code)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Quiet."""


@contextlib.contextmanager
def store(address='127.0.0.1'):
    """Port of a running store."""
    server = http.server.ThreadingHTTPServer((address, 0), StoreHandler)
    server.daemon_threads, server.values = True, {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(rank, world_size, port, address='127.0.0.1', interface='lo', host='localhost', local=None):
    """Of one process. local: (local_rank, local_size), if not all processes are of one host."""
    local_rank, local_size = local or (rank, world_size)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_NAMES)}
    return dict(kept, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', HOROVOD_HOSTNAME=host, HOROVOD_RANK=str(rank),
                HOROVOD_SIZE=str(world_size), HOROVOD_LOCAL_RANK=str(local_rank), HOROVOD_LOCAL_SIZE=str(local_size),
                HOROVOD_CROSS_RANK=str(rank // local_size), HOROVOD_CROSS_SIZE=str(world_size // local_size),
                HOROVOD_GLOO_RENDEZVOUS_ADDR=address, HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
                HOROVOD_CONTROLLER='gloo', HOROVOD_CPU_OPERATIONS='gloo', HOROVOD_GLOO_IFACE=interface)


class Job:
    """Running processes of one job. outputs: file per rank with all it wrote."""

    def __init__(self, processes, outputs):
        self.processes, self.outputs = processes, outputs

    def wait(self, seconds):
        """Exit code of each process; all of them must have ended by then."""
        deadline = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            pytest.fail('still running after %g s: ranks %s\n%s' % (
                seconds, [rank for rank, process in enumerate(self.processes) if process.poll() is None], self.text()))

    def text(self, rank=None):
        """What a rank, or what all of them wrote."""
        ranks = range(len(self.outputs)) if rank is None else [rank]
        return '\n'.join(self.outputs[one].read_text(errors='replace') for one in ranks)

    def wait_for(self, sign, rank, seconds=60):
        """Wait until a rank has written a text."""
        deadline = time.monotonic() + seconds
        while sign not in self.text(rank):
            if time.monotonic() > deadline or self.processes[rank].poll() is not None:
                pytest.fail('rank %d never wrote %r:\n%s' % (rank, sign, self.text()))
            time.sleep(0.05)


@contextlib.contextmanager
def processes(folder, commands, environs):
    """Run the commands, each in its environment -> Job; what still runs at the end is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / ('rank%d.txt' % rank) for rank in range(len(commands))]
    started = []
    try:
        for arguments, environ, output in zip(commands, environs, outputs):
            with open(str(output), 'wb') as stream:
                started.append(subprocess.Popen(list(map(str, arguments)), env=environ, stdout=stream,
                                                stderr=subprocess.STDOUT, cwd=str(ROOT)))
        yield Job(started, outputs)
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def job(folder, world_size, command, changes=None):
    """Run `python COMMAND` in each of world_size processes -> Job.

    command: arguments, or a function of the rank that gives them. changes: {rank: {variable: value}}.
    """
    commands = [[sys.executable, *(command(rank) if callable(command) else command)] for rank in range(world_size)]
    with store() as port:
        environs = [dict(environment(rank, world_size, port), **(changes or {}).get(rank, {}))
                    for rank in range(world_size)]
        with processes(folder, commands, environs) as running:
            yield running
