"""The classification layer over two processes beside one process with two shards, alternating in one run.

python -m benchmarks.distributed [--classes 50000] [--batch 128] [--rounds 7] [--steps 5]

Needs Horovod (python -m recognition.install_horovod). Both have two shards with one thread each on this machine; while
one process computes alone, the other waits in Horovod. Gloo over the loopback moves the arrays of the two. Times are
medians of rounds, the ratio is taken within each round.
bytes: what a process sends per step, counted, beside the least that the step needs: gather of the embeddings and
labels, reduce-scatter of the gradient, all-reduce of three float32 statistics (maximum, sum, target) per image.
"""
import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

PROCESSES = 2
EMBEDDING = 512
SOLVER = (0.01, 0.9, 5e-4)           # lr, momentum, weight decay


def least_bytes(batch):
    """Of one process and step: 4 N D and 8 N gathered, 4 N D reduced, 2 x 12 N all-reduced, each times (R - 1) / R."""
    return batch * (8 * EMBEDDING + 8 + 2 * 12) * (PROCESSES - 1) // PROCESSES


def make_step(mx, args, num_shards, collective):
    """Function that makes one step of the layer over this process or over all."""
    import numpy as np

    from recognition.margin import Margin
    from recognition.parall_module import Head
    head = Head.initial(args.classes, EMBEDDING, [mx.cpu(device) for device in range(num_shards)], Margin(1, 0.5, 0), 0,
                        collective)
    rows = args.batch // collective.world_size
    embedding = mx.nd.random.normal(shape=(rows, EMBEDDING))
    labels = np.random.RandomState(collective.rank).randint(0, args.classes, rows)
    return lambda: head.forward_backward(embedding, labels, SOLVER)


def seconds_per_step(mx, step, steps):
    mx.nd.waitall()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    mx.nd.waitall()
    return (time.perf_counter() - begin) / steps


def work(args):
    """What each process runs; rank 0 prints."""
    from common.mxnet_loader import mx
    from recognition.collective import LocalCollective, connect
    from recognition.processes import find_place
    collective = connect(find_place(os.environ))
    with collective.explaining():
        together = make_step(mx, args, 1, collective)
        alone = make_step(mx, args, PROCESSES, LocalCollective()) if collective.rank == 0 else None
        rounds = []
        for _ in range(args.rounds + 1):                          # the first one warms up
            collective.barrier('begin')
            sent = collective.sent_bytes
            both = seconds_per_step(mx, together, args.steps)
            sent = (collective.sent_bytes - sent) // args.steps
            collective.barrier('alone')
            if alone:
                one = seconds_per_step(mx, alone, args.steps)
                rounds.append((1000 * one, 1000 * both, both / one))
        if alone:
            one, both, ratio = (statistics.median(column) for column in zip(*rounds[1:]))
            print('| %d | %d | %.1f | %.1f | %.2f | %d | %d | %.3f |' % (
                args.classes, args.batch, one, both, ratio, sent, least_bytes(args.batch),
                sent / least_bytes(args.batch)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--classes', type=int, default=50000)
    parser.add_argument('--batch', type=int, default=128, help='rows of the global batch (default: 128)')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--steps', type=int, default=5, help='of a round (default: 5)')
    parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    from tests.launcher import job
    with tempfile.TemporaryDirectory() as folder, job(pathlib.Path(folder), PROCESSES, [
            '-m', 'benchmarks.distributed', '--worker', *sys.argv[1:]]) as running:
        codes = running.wait(3600)
        lines = [line for line in running.text(0).splitlines() if line.startswith('|')]
        if any(codes) or not lines:
            raise SystemExit(running.text())
    print('| classes | batch | one process ms | two processes ms | two / one | bytes sent | least | sent / least |')
    print('|%s\n%s' % ('---|' * 8, lines[0]))


if __name__ == '__main__':
    main()
