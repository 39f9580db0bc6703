"""Which process of a job this one is, as its launcher says in the environment. Known before MXNet starts."""
import os
import sys
import traceback
from collections import namedtuple

from common.errors import UserError

# rank: number of the process, of world_size; local_rank: its number among the local_size processes of its host
Place = namedtuple('Place', 'rank world_size local_rank local_size')

ALONE = Place(0, 1, 0, 1)
LAUNCHERS = (
    ('HOROVOD_RANK', 'HOROVOD_SIZE', 'HOROVOD_LOCAL_RANK', 'HOROVOD_LOCAL_SIZE'),                        # horovodrun
    ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_LOCAL_SIZE'),
    ('MV2_COMM_WORLD_RANK', 'MV2_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_LOCAL_RANK', 'MV2_COMM_WORLD_LOCAL_SIZE'),
    ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID', 'MPI_LOCALNRANKS'),                                # MPICH, Intel MPI
)


def find_place(environ):
    """environ -> Place; ALONE without a launcher. UserError for numbers that make no sense."""
    for names in LAUNCHERS:
        if names[0] in environ and names[1] in environ:
            return _read(environ, names)
    return ALONE


def _read(environ, names):
    texts = [environ.get(name, str(default)) for name, default in zip(names, ALONE)]
    try:
        place = Place(*map(int, texts))
    except ValueError:
        place = None
    if not place or not (0 <= place.rank < place.world_size and 0 <= place.local_rank < place.local_size):
        shown = ' '.join('%s=%s' % pair for pair in zip(names, texts))
        raise UserError('the environment says %s, which is no process of a job: start the program with horovodrun or '
                        'mpirun, or unset these' % shown)
    return place


def run_in_job(call, environ):
    """call() -> the exit code that it returned. A process of a job that fails ends here and at once.

    At an ordinary exit Horovod and MXNet would wait for processes that may be gone.
    """
    if not any(names[0] in environ for names in LAUNCHERS):
        return call()
    try:
        code = call()
    except Exception:
        traceback.print_exc()
        code = 1
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def refuse_parameter_server(environ):
    """Old scripts for several machines start MXNet's parameter server, which this program does not use. UserError."""
    workers = environ.get('DMLC_NUM_WORKER', '1')
    if workers != '1':
        raise UserError('DMLC_NUM_WORKER=%s: several processes do not go through MXNet\'s parameter server here; unset '
                        'DMLC_NUM_WORKER and start: horovodrun -np %s sh -c "python train_parall.py ..."'
                        % (workers, workers))
