"""Memory of the classification layer beside the usual algorithm: multiples of centers and momentum.

python -m benchmarks.head_memory [--classes 50000 200000] [--batch 128] [--shards 1] [--plot memory.png]

Each figure is the peak of resident memory, beyond that of a process that has made its first arrays, of a process of
its own: after the layer is made, after three steps, after it was saved, after it was loaded again. The usual algorithm
(usual_head.py) is made and stepped only. Bounds: lean 1.10, fast 1.10 and one float32 (N, C) matrix.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.head import EMBEDDING, SOLVER
from common.plotting import new_figure

WAYS = 'fast', 'lean', 'usual'
STEPS = 3
BOUND = 1.10


def held(num_classes):
    """Bytes of centers and momentum."""
    return 2 * 4 * EMBEDDING * num_classes


def bound(way, num_classes, num_rows):
    """Largest multiple of held() that is promised; None for the usual algorithm."""
    return {'lean': BOUND, 'fast': BOUND + 4 * num_rows * num_classes / held(num_classes)}.get(way)


def peaks(way, num_classes, num_rows, num_shards):
    """{phase: peak bytes beyond the start} of this process, which should be a fresh one."""
    from common.memory import resident
    from common.mxnet_loader import mx
    contexts = [mx.cpu(device) for device in range(num_shards)]
    for phase in ours(mx, 'fast', 100, num_rows, contexts).values():           # libraries, threads, kernels
        phase()
    mx.nd.waitall()
    start, found = resident('VmRSS'), {}
    for name, phase in (usual if way == 'usual' else ours)(mx, way, num_classes, num_rows, contexts).items():
        phase()
        mx.nd.waitall()
        found[name] = resident('VmHWM') - start
    return found


def ours(mx, way, num_classes, num_rows, contexts):
    """{phase: function that does it}, in order."""
    import numpy as np

    from recognition.checkpoint import head_folder, load_head, save_head
    from recognition.collective import LocalCollective
    from recognition.margin import Margin
    from recognition.parall_module import Head
    embedding = mx.nd.random.normal(shape=(num_rows, EMBEDDING))
    labels = np.random.RandomState(0).randint(0, num_classes, num_rows)
    folder, made = tempfile.TemporaryDirectory(), {}
    prefix = os.path.join(folder.name, 'model')

    def make():
        made['folder'] = folder                                    # lives as long as the functions
        made['head'] = Head.initial(num_classes, EMBEDDING, contexts, Margin(1, 0.5, 0), 0, LocalCollective(),
                                    keep_logits=way == 'fast')
    return {'init': make, 'steps': lambda: repeat(lambda: made['head'].forward_backward(embedding, labels, SOLVER)),
            'save': lambda: save_head(prefix, 1, made['head']),
            'load': lambda: load_head(head_folder(prefix, 1), made['head'])}


def repeat(step):
    for _ in range(STEPS):
        step()


def usual(mx, _way, num_classes, num_rows, contexts):
    """As ours()."""
    import numpy as np

    from benchmarks.usual_head import UsualHead
    from recognition.sharding import shard_range
    embedding, made = mx.nd.random.normal(shape=(num_rows, EMBEDDING)), {}
    label = mx.nd.array(np.random.RandomState(0).randint(0, num_classes, num_rows))
    edges = [shard_range(num_classes, shard, len(contexts)) for shard in range(len(contexts))]

    def make():
        made['head'] = UsualHead(mx, edges, EMBEDDING, contexts)
    return {'init': make, 'steps': lambda: repeat(lambda: made['head'].step(embedding, label, SOLVER))}


def measure(way, num_classes, num_rows, num_shards):
    """peaks() of a new process."""
    command = [sys.executable, '-m', 'benchmarks.head_memory', '--child', way, '--classes', str(num_classes),
               '--batch', str(num_rows), '--shards', str(num_shards)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=str(pathlib.Path(__file__).parent.parent))
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def row(way, num_classes, num_rows, found):
    """One line of the table."""
    limit, whole = bound(way, num_classes, num_rows), held(num_classes)
    cells = ['%.3f' % (found[phase] / whole) if phase in found else '' for phase in ('init', 'steps', 'save', 'load')]
    return '| %s | %d | %d | %s | %s | %.0f |' % (way, num_classes, num_rows, ' | '.join(cells),
                                                  '' if limit is None else '%.3f' % limit,
                                                  max(found.values()) / 1e6)


def plot(path, rows, title):
    """Peak against classes, one line per way. rows: (way, classes, bytes)."""
    figure = new_figure('--plot', figsize=(7, 4.5))
    axes = figure.subplots()
    for way in WAYS:
        points = sorted((classes, size / 1e9) for name, classes, size in rows if name == way)
        axes.plot(*zip(*points), marker='o', label=way)
    classes = sorted({classes for _, classes, _ in rows})
    axes.plot(classes, [held(count) / 1e9 for count in classes], linestyle='--', color='gray',
              label='centers and momentum')
    axes.set(xlabel='classes', ylabel='peak GB beyond the start', title=title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=90, bbox_inches='tight')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--classes', type=int, nargs='+', default=[50000, 200000])
    parser.add_argument('--batch', type=int, default=128, help='rows of the global batch (default: 128)')
    parser.add_argument('--shards', type=int, default=1, help='CPU devices (default: 1)')
    parser.add_argument('--plot', metavar='FILE', help='draw the peaks as a picture (needs matplotlib)')
    parser.add_argument('--child', choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(peaks(args.child, args.classes[0], args.batch, args.shards)))
        return
    title = 'D = %d, batch %d, %d shards' % (EMBEDDING, args.batch, args.shards)
    print('%s; peak as multiple of centers and momentum' % title)
    print('| layer | classes | batch | made | 3 steps | saved | loaded | bound | MB |\n|%s' % ('---|' * 9))
    rows = []
    for num_classes in args.classes:
        for way in WAYS:
            found = measure(way, num_classes, args.batch, args.shards)
            rows.append((way, num_classes, max(found.values())))
            print(row(way, num_classes, args.batch, found), flush=True)
    if args.plot:
        plot(args.plot, rows, title)


if __name__ == '__main__':
    main()
