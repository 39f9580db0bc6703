"""The logger of the project: everybody takes logging.getLogger('shardface'), the command line sets it up here, once."""
import contextlib
import logging
import os

from common.errors import UserError

log = logging.getLogger('shardface')

FINAL = {'final': True}              # extra= of the line that says how a task ended: it is shown with --quiet, too


def formatter(rank, world_size):
    """Time and message; of which process, if there are several."""
    process = '' if world_size == 1 else 'rank %d ' % rank
    return logging.Formatter('%(asctime)s ' + process + '%(levelname)s %(message)s', '%Y-%m-%d %H:%M:%S')


@contextlib.contextmanager
def logging_to_console(rank=0, world_size=1, quiet=False):
    """Log to standard error while the block runs, then leave the logger as it was.

    Rank 0 writes everything from INFO on, the other processes warnings and errors only; quiet: rank 0, too, but also
    the line that is FINAL.
    """
    before = list(log.handlers), log.level, log.propagate
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(rank, world_size))
    handler.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    if quiet:
        handler.addFilter(lambda record: record.levelno >= logging.WARNING or hasattr(record, 'final'))
    log.handlers, log.propagate = [handler], False      # MXNet may set up the root logger: one line is enough
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in log.handlers:
            handler.close()
        log.handlers, log.propagate = before[0], before[2]
        log.setLevel(before[1])


def log_to_file(path, rank=0, world_size=1):
    """Also append everything from INFO on to a file, until logging_to_console ends. UserError if that cannot be."""
    try:
        handler = logging.FileHandler(path, encoding='utf-8')
    except OSError as error:
        raise UserError('cannot write %s: %s' % (os.path.abspath(path), error.strerror)) from None
    handler.setFormatter(formatter(rank, world_size))
    log.addHandler(handler)
