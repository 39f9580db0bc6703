"""Operations over all processes of the job. The only file that imports Horovod.

Every operation has a name that repeats each step; all processes call the same operations in the same order.
"""
import contextlib
import json
import logging
import socket

import numpy as np

from common.errors import UserError
from recognition.watch import Watch

log = logging.getLogger('shardface')

INSTALL = 'python -m recognition.install_horovod'
SURE = 2.0                           # seconds in which the watch knows who ended
LOST = 'Horovod', 'horovod', 'gloo', 'MPI', 'NCCL', 'nccl', 'Connection ', 'Read error', 'Broken pipe'


class LocalCollective:
    """One process: every operation is the identity.

    sent_bytes: what this process has had to send so far, by the shortest way there is.
    """

    rank, world_size, local_rank, local_size, sent_bytes = 0, 1, 0, 1, 0

    def allgather(self, array, name):
        """Stack the rows of all processes, in rank order: (n, ...) -> (n * world_size, ...). NumPy or MXNet array."""
        return array

    def reduce_scatter_sum(self, array, name):
        """Sum over the processes, each keeps the rows it owns. array: (n * world_size, ...) -> (n, ...)."""
        return array

    def allreduce_sum(self, arrays, name):
        """Sum of each array over the processes, in place; returns without waiting."""

    def broadcast(self, arrays, name):
        """Each array becomes that of rank 0, in place."""

    def exchange(self, value, name):
        """One value of each process, anything that JSON holds -> list of all, in rank order."""
        return [value]

    def barrier(self, name):
        """Wait for all processes."""

    @contextlib.contextmanager
    def explaining(self):
        """Around all that a process does: the failure of an operation becomes a UserError that names who ended. After
        the block, if it was left in order, this process may end without the others."""
        yield


class HorovodCollective(LocalCollective):
    """Several processes, on Horovod. Arrays stay where they are: on the host Gloo or MPI moves them, on GPUs NCCL."""

    def __init__(self, place):
        """place: what the launcher says, a Place. UserError if Horovod is missing, unfit, sees another job, or would
        tell the other hosts to connect to themselves."""
        self._hvd = import_horovod()
        if place.local_size < place.world_size and not self._hvd.mpi_built():
            require_own_name()
        from common.mxnet_loader import mx
        self._mx = mx
        try:
            self._hvd.init()
        except Exception as error:                                       # Horovod has no narrower one
            raise UserError('Horovod cannot reach the other processes (%s): see whether each of them started'
                            % last_line(error)) from None
        self.rank, self.world_size = self._hvd.rank(), self._hvd.size()
        self.local_rank, self.local_size = self._hvd.local_rank(), self._hvd.local_size()
        if self.world_size != place.world_size:
            raise UserError('the launcher started %d processes, but Horovod sees %d: it was built without MPI if this '
                            'is mpirun; use horovodrun --gloo, or build it with MPI: %s --mpi'
                            % (place.world_size, self.world_size, INSTALL))
        self.sent_bytes = 0
        self._watch = Watch(self) if self.world_size > 1 else None

    def _count(self, array, share):
        """share: of the bytes of the array, times the number of processes."""
        self.sent_bytes += int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize * share // self.world_size

    def allgather(self, array, name):
        self._count(array, (self.world_size - 1) * self.world_size)
        if isinstance(array, np.ndarray):
            return self._hvd.allgather(self._mx.nd.from_numpy(array.copy()), name=name).asnumpy()
        return self._hvd.allgather(array, name=name)

    def reduce_scatter_sum(self, array, name):
        self._count(array, self.world_size - 1)
        return self._hvd.reducescatter(array, op=self._hvd.Sum, name=name)

    def allreduce_sum(self, arrays, name):
        for number, array in enumerate(arrays):
            self._count(array, 2 * (self.world_size - 1))
            self._hvd.allreduce_(array, op=self._hvd.Sum, name='%s.%d' % (name, number), priority=-number)

    def broadcast(self, arrays, name):
        for number, array in enumerate(arrays):
            self._hvd.broadcast_(array, root_rank=0, name='%s.%d' % (name, number))
        for array in arrays:
            array.wait_to_read()

    def exchange(self, value, name):
        line = json.dumps(value).encode('ascii') + b'\n'
        lines = self._hvd.allgather(self._mx.nd.array(np.frombuffer(line, np.uint8), dtype='uint8'), name=name)
        return [json.loads(line) for line in lines.asnumpy().tobytes().decode('ascii').splitlines()]

    def barrier(self, name):
        self.exchange(self.rank, name)

    @contextlib.contextmanager
    def explaining(self):
        try:
            yield
        except self._mx.MXNetError as error:
            if not any(sign in str(error) for sign in LOST):
                raise
            ended = self._watch.wait_for_end(SURE) if self._watch else None
            why = 'one of them ended, or the network failed' if ended is None else 'rank %d ended' % ended
            raise UserError('rank %d lost the other processes: %s, and its own message says why (%s)'
                            % (self.rank, why, last_line(error).partition('. ')[0])) from None
        if self._watch:
            self._watch.close()


def last_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def import_horovod():
    """horovod.mxnet. UserError with the remedy if it is missing or does not know MXNet."""
    from common.mxnet_loader import mx  # noqa: F401   Horovod imports it too, and it has to be mended first
    try:
        import horovod.mxnet
    except ModuleNotFoundError as error:
        raise UserError('several processes need Horovod (no module named %s): %s' % (error.name, INSTALL)) from None
    except Exception as error:                       # a build without MXNet or for another raises what it likes
        raise UserError('Horovod is installed, but not for this MXNet (%s): %s --force'
                        % (last_line(error), INSTALL)) from None
    return horovod.mxnet


def horovod_capabilities():
    """What the installed Horovod was built with, in words. UserError as import_horovod."""
    hvd = import_horovod()
    ways = ('Gloo', hvd.gloo_built()), ('MPI', hvd.mpi_built()), ('NCCL', hvd.nccl_built())
    return 'built with %s' % ', '.join(name for name, is_there in ways if is_there)


def require_own_name():
    """UserError if other hosts cannot use what the name of this host stands for: the Gloo of Horovod 0.28.1 gives it to
    them as the address for its process sets, whatever HOROVOD_GLOO_IFACE is.
    """
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = None
    if address is None or address.startswith('127.'):
        raise UserError('the name of this host, %s, stands for %s on itself, which other hosts cannot reach: give the '
                        'name its address on the network in /etc/hosts' % (name, address or 'no address'))


def connect(place, wanted=False):
    """The collective of this process: Horovod if a launcher started several, or if wanted (--distributed)."""
    if place.world_size == 1 and not wanted:
        return LocalCollective()
    collective = HorovodCollective(place)
    log.info('%d processes, %d on this host', collective.world_size, collective.local_size)
    return collective
