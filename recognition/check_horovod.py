"""Run by each process of a small job: every operation that training uses, against what it must give.

horovodrun -np 2 python -m recognition.check_horovod
"""
import os
import sys

import numpy as np

from common.command import run_tool, tool_parser
from common.errors import UserError
from recognition.collective import connect
from recognition.processes import find_place, run_in_job


def check_operations(collective):
    """UserError that names the first operation whose result is wrong."""
    from common.mxnet_loader import mx
    rank, size = collective.rank, collective.world_size
    expect('allgather', collective.allgather(mx.nd.full((1, 2), rank), 'check_gather').asnumpy()[:, 0], np.arange(size))
    labels = np.array([2**40 + rank], np.int64)
    expect('allgather of int64', collective.allgather(labels, 'check_labels'), 2**40 + np.arange(size))
    rows = mx.nd.array(np.arange(2 * size))
    expect('reducescatter', collective.reduce_scatter_sum(rows, 'check_scatter').asnumpy(),
           size * np.arange(2 * rank, 2 * rank + 2))
    for dtype in ('float32', 'float16'):
        total = mx.nd.full((3,), rank + 1, dtype=dtype)
        collective.allreduce_sum([total], 'check_sum_%s' % dtype)
        expect('allreduce of %s' % dtype, total.asnumpy(), np.full(3, size * (size + 1) // 2))
    first = mx.nd.full((2,), rank + 7)
    collective.broadcast([first], 'check_broadcast')
    expect('broadcast', first.asnumpy(), np.full(2, 7))
    expect('exchange', collective.exchange({'rank': rank}, 'check_exchange'), [{'rank': one} for one in range(size)])


def expect(operation, found, wanted):
    if not np.array_equal(found, wanted):
        raise UserError('%s gave %s, not %s' % (operation, found, wanted))


def run(args):
    collective = connect(find_place(os.environ), wanted=True)
    with collective.explaining():
        check_operations(collective)


def main(argv=None):
    """Run the command line; returns the exit code."""
    parser = tool_parser('check_horovod', *__doc__.splitlines()[0:3:2])
    return run_in_job(lambda: run_tool(parser, run, argv), os.environ)


if __name__ == '__main__':
    sys.exit(main())
