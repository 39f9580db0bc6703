"""Whether the other processes of a job are there: a TCP connection of every process to rank 0, beside Horovod.

A process that ends, however it ends, closes its connection; the others then end too, with a message that names it,
where Horovod alone was seen to wait for ever. One that is silent is named in a warning. No collectives after the start.
"""
import logging
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections import namedtuple

try:
    import fcntl
except ImportError:                  # Windows
    fcntl = None

log = logging.getLogger('shardface')

# seconds: between signs of life; of silence after which a process is called late, and lost; that the main thread has
# to end by itself, with a better message, after another process has ended; to connect at the start
Timing = namedtuple('Timing', 'beat late lost grace connect', defaults=(1.0, 30.0, 600.0, 5.0, 20.0))

NORMAL = Timing()
BEAT, BYE, END = 'beat', 'bye', 'end'
LOOPBACK = '127.0.0.1'
SENDING = 5.0                        # seconds; a line is a few bytes, which the buffers take
HANDSHAKE = 2.0                      # seconds that who connects has to say who it is
SIOCGIFADDR = 0x8915                 # Linux: the IPv4 address of a network interface


def end_process(text):
    """Write the message and end, without the exit handlers of Horovod, which wait for processes that are gone."""
    sys.stderr.write('error: %s\n' % text)
    sys.stderr.flush()
    os._exit(1)


class Watch:
    """Connects at once (two exchanges of the collective) and watches on a thread until close().

    ended: rank of the process that ended first, as far as this one knows; None while all are there.
    """

    def __init__(self, collective, timing=NORMAL, end=end_process):
        """end: called with a message on the thread when another process has ended and this one did not."""
        self._rank, self._timing, self._end = collective.rank, timing, end
        self.ended, self._closing, self._peers = None, threading.Event(), {}
        connect = self._accept if self._rank == 0 else self._reach
        connect(collective)
        if not all(collective.exchange(bool(self._peers), 'watching')):
            self._drop()
            log.warning('rank 0 is out of reach of some processes except through Horovod: if one ends, others may wait')
        self._thread = threading.Thread(target=self._run, name='watch', daemon=True)
        self._thread.start()

    def _accept(self, collective):
        """Rank 0: offer addresses, take all others."""
        with socket.create_server(('', 0), backlog=collective.world_size) as listener:
            token = secrets.token_hex(16)
            collective.exchange([own_addresses(), listener.getsockname()[1], token], 'watch')
            peers, deadline = {}, time.monotonic() + self._timing.connect
            while len(peers) < collective.world_size - 1 and time.monotonic() < deadline:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    peer = Peer(listener.accept()[0])
                except OSError:
                    continue
                said, _, rank = peer.first_line(HANDSHAKE).partition(' ')
                if said == token and rank.isdigit():              # others may knock, too; only ours know the token
                    peers[int(rank)] = peer
                else:
                    peer.socket.close()
        self._peers = peers
        if len(peers) < collective.world_size - 1:
            self._drop()

    def _reach(self, collective):
        """Other ranks: the first of rank 0's addresses that answers."""
        addresses, port, token = collective.exchange(None, 'watch')[0]
        for address in addresses:
            try:
                peer = Peer(socket.create_connection((address, port), timeout=self._timing.connect / len(addresses)))
                peer.send('%s %d' % (token, self._rank))
            except OSError:
                continue
            self._peers = {0: peer}
            return

    def close(self):
        """Take leave: from now on this process may end."""
        self._closing.set()
        self._thread.join()

    def wait_for_end(self, seconds):
        """Rank of the process that ended, None if that is not known after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.ended is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.ended

    def _run(self):
        next_beat = 0.0
        while self._peers and self.ended is None and not self._closing.is_set():
            if time.monotonic() >= next_beat:
                self._tell(BEAT)
                next_beat = time.monotonic() + self._timing.beat
            self._listen(min(0.1, self._timing.beat))
        if self.ended is not None and not self._closing.wait(self._timing.grace):
            self._end('rank %d lost the other processes: rank %d ended, and its own message says why'
                      % (self._rank, self.ended))
        self._tell(BYE)
        self._drop()

    def _listen(self, seconds):
        ready, _, _ = select.select([peer.socket for peer in self._peers.values()], [], [], seconds)
        for rank, peer in list(self._peers.items()):
            if peer.socket in ready:
                self._take(rank, peer)
            elif peer.is_late(self._timing.late):
                log.warning('rank %d has given no sign of life for %.0f s: it was stopped, or its host or network is '
                            'gone', rank, self._timing.late)
            if rank in self._peers and peer.silence() > self._timing.lost:
                self._lose(rank)

    def _take(self, rank, peer):
        lines = peer.lines()
        if lines is None:
            self._lose(rank)
        elif peer.was_late():
            log.warning('rank %d gives signs of life again', rank)
        for line in lines or []:
            word, _, number = line.partition(' ')
            if word == BYE:
                self._peers.pop(rank).socket.close()
                break
            if word == END and self.ended is None:
                self.ended = int(number)

    def _lose(self, rank):
        self._peers.pop(rank).socket.close()
        if self.ended is None:
            self.ended = rank
            self._tell('%s %d' % (END, rank))

    def _tell(self, line):
        for rank, peer in list(self._peers.items()):
            try:
                peer.send(line)
            except OSError:
                if line == BEAT:
                    self._lose(rank)

    def _drop(self):
        for peer in self._peers.values():
            peer.socket.close()
        self._peers = {}


class Peer:
    """Lines of text over a socket, and when the last one came."""

    def __init__(self, connection):
        self.socket, self._rest, self._heard, self._said_late = connection, b'', time.monotonic(), False
        connection.settimeout(SENDING)

    def send(self, line):
        self.socket.sendall(line.encode('ascii') + b'\n')

    def first_line(self, seconds):
        """'' if none comes."""
        self.socket.settimeout(seconds)
        try:
            while b'\n' not in self._rest and len(self._rest) < 1024:
                data = self.socket.recv(256)
                self._rest += data or b'\n'
        except OSError:
            return ''
        self.socket.settimeout(SENDING)
        line, _, self._rest = self._rest.partition(b'\n')
        return line.decode('ascii', 'replace')

    def lines(self):
        """Lines that have come; None if the other end is closed."""
        try:
            data = self.socket.recv(4096)
        except OSError:
            data = b''
        if not data:
            return None
        self._heard = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b'\n')
        return [line.decode('ascii', 'replace') for line in lines]

    def silence(self):
        """Seconds."""
        return time.monotonic() - self._heard

    def is_late(self, seconds):
        """True once per silence of so many seconds."""
        if self._said_late or self.silence() < seconds:
            return False
        self._said_late = True
        return True

    def was_late(self):
        """True once after is_late()."""
        was, self._said_late = self._said_late, False
        return was


def own_addresses():
    """IPv4 addresses of this host by which other processes may reach it, loopback last."""
    found = []
    if fcntl is not None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack('256s', name.encode()[:15]))
                    found.append(socket.inet_ntoa(answer[20:24]))
                except OSError:
                    continue                           # an interface without an IPv4 address
    try:
        found.append(socket.gethostbyname(socket.gethostname()))
    except OSError:
        pass
    return [address for address in dict.fromkeys(found) if address != LOOPBACK] + [LOOPBACK]
