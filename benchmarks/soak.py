"""A job of 2 processes that trains, verifies and saves for a while: does it keep what it has taken?

python -m benchmarks.soak [--steps 300] [--every 50]

Halfway between one saving and the next, resident memory, open files and threads of every process are read from /proc
(Linux). The first 100 steps warm up. Exit code 1 if memory then grows by 2 percent, or files or threads become more.
"""
import argparse
import os
import pathlib
import re
import sys
import tempfile
import time

WARM_UP = 100
MOST_GROWTH = 0.02


def taken(pid):
    """(resident MB, open files, threads) of a process."""
    folder = pathlib.Path('/proc/%d' % pid)
    status = dict(line.split(':', 1) for line in (folder / 'status').read_text().splitlines())
    return int(status['VmRSS'].split()[0]) / 1000, len(os.listdir(str(folder / 'fd'))), int(status['Threads'])


def last_step(text):
    found = re.findall(r' step (\d+)/', text)
    return int(found[-1]) if found else 0


def watch(running, steps, every):
    """{step: [what each process has taken]}, until the job ends."""
    found, due = {}, WARM_UP + every // 2
    while running.processes[0].poll() is None:
        step = last_step(running.text(0))
        if step >= due and step < steps:
            found[step] = [taken(process.pid) for process in running.processes]
            due += every
        time.sleep(0.05)
    return found


def make_files(folder):
    from common.verification import write_bin
    from tests.make_sets import identity_set, jpeg
    identity_set(folder / 'set', 10, 6)
    write_bin(str(folder / 'set' / 'own.bin'), [jpeg(number) for number in range(40)], [True, False] * 10)


def grown(found):
    """What became more: texts."""
    first, last = found[min(found)], found[max(found)]
    for rank, (before, after) in enumerate(zip(first, last)):
        if after[0] > (1 + MOST_GROWTH) * before[0]:
            yield 'memory of rank %d: %.1f to %.1f MB' % (rank, before[0], after[0])
        for name, one, other in zip(('open files', 'threads'), before[1:], after[1:]):
            if other > one:
                yield '%s of rank %d: %d to %d' % (name, rank, one, other)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--steps', type=int, default=300)
    parser.add_argument('--every', type=int, default=50, help='steps between verifications and savings (default: 50)')
    args = parser.parse_args()
    from tests.launcher import job
    with tempfile.TemporaryDirectory() as name:
        folder, every = pathlib.Path(name), str(args.every)
        make_files(folder)
        command = ['train_parall.py', '--network', 'demo', '--dataset', 'casia', '--per-batch-size', '2', '--devices',
                   'cpu:1', '--dataset-path', folder / 'set', '--models-root', folder / 'models', '--frequent', '1',
                   '--max-steps', str(args.steps), '--verbose', every, '--ckpt-every', every, '--ckpt', '2',
                   '--set', 'val_targets=own', '--set', 'report=False']
        with job(folder / 'out', 2, command) as running:
            found = watch(running, args.steps, args.every)
            codes = running.wait(30)
            text = running.text()
    if codes != [0, 0]:
        sys.exit('the job ended with %s\n%s' % (codes, text))
    for step, rows in found.items():
        print('step %d: %s' % (step, '; '.join('rank %d %.1f MB, %d files, %d threads' % (rank, *row)
                                               for rank, row in enumerate(rows))))
    more = list(grown(found))
    sys.exit('; '.join(more) if more else 0)


if __name__ == '__main__':
    main()
