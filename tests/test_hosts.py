"""Jobs as users start them: by horovodrun on this machine, and by hand on two hosts. Over Gloo, never with ssh."""
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.launcher import environment, needs_horovod, processes
from tests.make_sets import identity_set

pytestmark = needs_horovod

GUIDE = (ROOT / 'docs' / 'distributed.md').read_text(encoding='utf-8')
SMALL = ('--set', 'network=demo', '--dataset', 'casia', '--per-batch-size', '2', '--devices', 'cpu:1',
         '--frequent', '1', '--set', 'val_targets=', '--set', 'report=False')
SECONDS = 30                         # after the end of one process all must be gone
SYSTEM_PATH = os.pathsep.join([os.environ.get('PATH', os.defpath), '/usr/sbin', '/sbin'])


@pytest.fixture
def flags(tmp_path):
    """Of a small training."""
    identity_set(tmp_path / 'set', 10, 6)
    return [*SMALL, '--dataset-path', str(tmp_path / 'set'), '--models-root', str(tmp_path / 'models')]


# horovodrun on one host

def documented(program, *words):
    """The first command of the guide that starts so and has these words, split."""
    for line in GUIDE.splitlines():
        parts = shlex.split(line) if line.startswith(program + ' ') else []
        if parts and set(words) <= set(parts):
            return parts
    raise AssertionError('docs/distributed.md has no command %s ... %s' % (program, ' '.join(words)))


def horovodrun(tmp_path, flags):
    """Run the guide's command for one host with more flags -> (exit code, output). ssh leaves a trace and fails."""
    trap = tmp_path / 'bin' / 'ssh'
    trap.parent.mkdir()
    trap.write_text('#!/bin/sh\ntouch %s\nexit 1\n' % shlex.quote(str(tmp_path / 'ssh-was-called')))
    trap.chmod(0o755)
    own = pathlib.Path(sys.executable).parent                              # horovodrun and the right python are there
    environ = {name: value for name, value in os.environ.items() if not name.startswith('HOROVOD_')}
    environ.update(PATH=os.pathsep.join([str(trap.parent), str(own), environ['PATH']]), OMP_NUM_THREADS='1')
    done = subprocess.run([*documented('horovodrun', '2'), *flags], env=environ, cwd=str(ROOT), timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert not (tmp_path / 'ssh-was-called').exists()
    return done.returncode, done.stdout.decode(errors='replace')


def test_horovodrun_trains(tmp_path, flags):
    code, text = horovodrun(tmp_path, [*flags, '--max-steps', '3'])
    assert code == 0, text
    assert 'rank 0 INFO 2 processes, 2 on this host' in text and 'done: 3 steps' in text
    heads = sorted(path.name for path in (tmp_path / 'models').glob('*/model-0000.head/centers-*'))
    assert heads == ['centers-000000000-000000005.npy', 'centers-000000005-000000010.npy']


def test_horovodrun_tells_of_an_error(tmp_path, flags):
    code, text = horovodrun(tmp_path, [*flags, '--per-batch-size', '64'])
    assert code != 0
    assert 'error: rank 0: ' in text and '60 images < global batch 128' in text


def test_horovodrun_takes_every_documented_command():
    """It looks for its own flags, and their beginnings, behind the name of the program too."""
    commands = [shlex.split(line) for line in GUIDE.splitlines() if line.startswith('horovodrun ')]
    assert len(commands) >= 2
    for command in commands:
        check = 'import sys; from horovod.runner.launch import parse_args; sys.argv = sys.argv[1:]; ' \
                'print(parse_args().command)'
        done = subprocess.run([sys.executable, '-c', check, *command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout.decode()
        assert done.stdout.decode().splitlines()[-1] == repr(command[command.index('python'):])


# Two hosts

class Host:
    """A network namespace with an address of its own, which is also what its host name stands for."""

    RENAMED = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'

    def __init__(self, tool, name, address, interface):
        self._tool, self.name, self.address, self.interface = tool, name, address, interface
        self.host_name = address                                           # resolved without any name service

    def command(self, *arguments):
        """Arguments that run others on this host."""
        return [self._tool, 'netns', 'exec', self.name, 'unshare', '--uts', 'sh', '-c', self.RENAMED, self.host_name,
                *arguments]


@pytest.fixture
def hosts():
    """Two hosts, joined by a cable. Skips where the machine does not allow making them."""
    tool = shutil.which('ip', path=SYSTEM_PATH)
    if tool is None:
        pytest.skip('no hosts can be made here: there is no command ip (iproute2)')
    made = [Host(tool, 'shardface-%d-%d' % (os.getpid(), number), '10.77.31.%d' % number, 'cable%d' % number)
            for number in (1, 2)]
    with contextlib.ExitStack() as stack:
        try:
            for host in made:
                ip(tool, 'netns', 'add', host.name)
                stack.callback(ip, tool, 'netns', 'del', host.name)
            one, other = made
            ip(tool, 'link', 'add', one.interface, 'netns', one.name, 'type', 'veth', 'peer', 'name', other.interface,
               'netns', other.name)
            for host in made:
                ip(tool, '-n', host.name, 'addr', 'add', host.address + '/24', 'dev', host.interface)
                ip(tool, '-n', host.name, 'link', 'set', host.interface, 'up')
                ip(tool, '-n', host.name, 'link', 'set', 'lo', 'up')
                subprocess.run(host.command('true'), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        except subprocess.CalledProcessError as error:
            pytest.skip('this machine does not allow making hosts in network namespaces: %s: %s' % (
                ' '.join(error.cmd[1:]), error.output.decode(errors='replace').strip()))
        yield made


def ip(tool, *arguments):
    subprocess.run([tool, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)


@contextlib.contextmanager
def store_on(host):
    """The guide's command for the store, on a host -> its port."""
    command = documented('python', '-c')
    process = subprocess.Popen(host.command(sys.executable, *command[1:]), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def job_on(hosts, folder, flags):
    """One process on each host, started by hand with the variables that the guide names."""
    with store_on(hosts[0]) as port:
        environs = [environment(rank, len(hosts), port, hosts[0].address, host.interface, host.name, (0, 1))
                    for rank, host in enumerate(hosts)]
        commands = [host.command(sys.executable, 'train_parall.py', *flags) for host in hosts]
        with processes(folder, commands, environs) as running:
            yield running


def test_the_guide_names_every_variable_of_a_start_by_hand():
    for name in environment(0, 1, 80):
        assert not name.startswith('HOROVOD_') or '`%s`' % name in GUIDE, name


def test_two_hosts_train(tmp_path, flags, hosts):
    with job_on(hosts, tmp_path / 'out', [*flags, '--max-steps', '3']) as running:
        assert running.wait(90) == [0, 0], running.text()
        assert '2 processes, 1 on this host' in running.text(0) and 'done: 3 steps' in running.text(0)
        assert 'out of reach' not in running.text()


def test_a_host_whose_name_stands_for_itself_only_is_refused(tmp_path, flags, hosts):
    """As many systems are set up, with 127.0.1.1 in /etc/hosts."""
    for host in hosts:
        host.host_name = '127.0.1.1'
    with job_on(hosts, tmp_path / 'out', flags) as running:
        assert 0 not in running.wait(SECONDS)
        for rank in range(2):
            assert 'error: the name of this host, 127.0.1.1, stands for 127.0.1.1 on itself' in running.text(rank)
            assert 'Traceback' not in running.text(rank)


@pytest.mark.parametrize('killed', [0, 1])
def test_a_kill_on_one_host_ends_the_other(tmp_path, flags, hosts, killed):
    with job_on(hosts, tmp_path / 'out', [*flags, '--max-steps', '100000', '--ckpt', '0']) as running:
        running.wait_for('step 3/', 0)
        running.processes[killed].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        assert 0 not in running.wait(SECONDS)
        assert time.monotonic() - begin < SECONDS
        assert re.search('rank %d lost the other processes: rank %d ended' % (1 - killed, killed), running.text())
