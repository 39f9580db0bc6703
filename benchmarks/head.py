"""Time of one step of the classification layer beside its floor and the usual algorithm, alternating in one run.

python -m benchmarks.head [--classes 10000 50000 200000] [--batch 128] [--shards 1] [--ratio 0.1] [--plot head.png]

floor: per block the three matrix products with the fastest MXNet operators (FullyConnected and its gradient) and
one SGD pass over weight and momentum, on the same devices with the same threads: nothing of softmax, norms, margin.
usual: whole matrices, one-hot mask, arccos on all logits, autograd through normalised centers (usual_head.py).
With --ratio: partial FC, beside the products of the picked centers, their gathering, SGD and scattering, and the
whole step. ns per class of one step shows how time grows: it is the same in every row of a table without a cliff.
"""
import argparse
import os
import statistics
import time

import numpy as np

from common.plotting import new_figure

EMBEDDING = 512
SOLVER = (0.01, 0.9, 5e-4)        # lr, momentum, weight decay


class Floor:
    """Products and SGD of one shard, block by block, nothing else. With ratio < 1 on rows gathered from each block."""

    def __init__(self, mx, num_classes, num_rows, context, block_size, ratio=1.0):
        self.mx, self.ratio = mx, ratio
        sizes = [min(block_size, num_classes - start) for start in range(0, num_classes, block_size)]
        self.blocks = [(mx.nd.random.normal(0, 0.01, (size, EMBEDDING), ctx=context),
                        mx.nd.zeros((size, EMBEDDING), ctx=context)) for size in sizes]
        largest = int(max(sizes) * ratio)
        self.features = mx.nd.random.normal(shape=(num_rows, EMBEDDING), ctx=context)
        self.d_features = mx.nd.zeros_like(self.features)
        self.d_weight = mx.nd.zeros((largest, EMBEDDING), ctx=context)
        self.logits = mx.nd.zeros((num_rows * largest,), ctx=context)
        self.d_logits = mx.nd.random.normal(shape=(num_rows * largest,), ctx=context)
        self.picked = [self._pick(size, context) if ratio < 1 else None for size in sizes]

    def _pick(self, size, context):
        picked = np.sort(np.random.RandomState(0).permutation(size)[:int(size * self.ratio)])
        return self.mx.nd.array(picked, context, 'int32')

    def step(self):
        for (weight, momentum), picked in zip(self.blocks, self.picked):
            if picked is None:
                self._products_and_update(weight, momentum)
            else:
                self._on_picked(weight, momentum, picked)

    def _on_picked(self, weight, momentum, picked):
        from recognition.class_block import set_entries
        rows = [self.mx.nd.take(array, picked) for array in (weight, momentum)]
        self._products_and_update(*rows)
        for array, values in zip((weight, momentum), rows):
            set_entries(array, picked.reshape((1, -1)), values)

    def _products_and_update(self, weight, momentum):
        from recognition.product import Product
        rows, size = len(self.features), len(weight)
        out, d_out = (flat[:rows * size].reshape((rows, size)) for flat in (self.logits, self.d_logits))
        product = Product(self.features, weight, None, out, [self.d_features, self.d_weight[:size]], None)
        product.backward(d_out, None)
        self.mx.nd.sgd_mom_update(weight, self.d_weight[:size], momentum, lr=1e-9, momentum=0.9, wd=5e-4, out=weight)


def seconds(mx, function):
    mx.nd.waitall()
    begin = time.perf_counter()
    function()
    mx.nd.waitall()
    return time.perf_counter() - begin


def contenders(mx, num_classes, num_rows, num_shards, ratio):
    """{name: function that makes one step}."""
    from benchmarks.usual_head import UsualHead
    from recognition.class_block import default_block_size
    from recognition.collective import LocalCollective
    from recognition.margin import Margin
    from recognition.parall_module import Head
    from recognition.sharding import shard_range
    contexts = [mx.cpu(device) for device in range(num_shards)]
    edges = [shard_range(num_classes, shard, num_shards) for shard in range(num_shards)]
    embedding = mx.nd.random.normal(shape=(num_rows, EMBEDDING))
    labels = np.random.RandomState(0).randint(0, num_classes, num_rows)

    def floor(share):
        floors = [Floor(mx, stop - start, num_rows, context, default_block_size(EMBEDDING), share)
                  for (start, stop), context in zip(edges, contexts)]
        return lambda: [part.step() for part in floors]

    def ours(**options):
        head = Head.initial(num_classes, EMBEDDING, contexts, Margin(1, 0.5, 0), 0, LocalCollective(), **options)
        return lambda: head.forward_backward(embedding, labels, SOLVER)

    if ratio < 1:
        return {'floor': floor(ratio), 'sampled': ours(sample_ratio=ratio), 'whole': ours()}
    usual = UsualHead(mx, edges, EMBEDDING, contexts)
    label = mx.nd.array(labels)
    return {'floor': floor(1.0), 'fast': ours(), 'lean': ours(keep_logits=False),
            'usual': lambda: usual.step(embedding, label, SOLVER)}


def measure(num_classes, num_rows, num_shards, rounds, ratio=1.0):
    """{name: milliseconds}, medians over the rounds; a round before them warms up."""
    from common.mxnet_loader import mx
    runs = contenders(mx, num_classes, num_rows, num_shards, ratio)
    times = [[1000 * seconds(mx, run) for run in runs.values()] for _ in range(rounds + 1)][1:]
    return dict(zip(runs, map(statistics.median, zip(*times))))


def ratios(found):
    """{title: quotient} of what measure() found."""
    if 'sampled' in found:
        return {'sampled / floor': found['sampled'] / found['floor'],
                'sampled / whole': found['sampled'] / found['whole']}
    return {'fast / floor': found['fast'] / found['floor'], 'lean / floor': found['lean'] / found['floor'],
            'usual / fast': found['usual'] / found['fast']}


def plot(path, rows, title):
    """Milliseconds against classes, one line per contender. rows: (classes, {name: ms})."""
    figure = new_figure('--plot', figsize=(7, 4.5))
    axes = figure.subplots()
    classes = [count for count, _ in rows]
    for name in rows[0][1]:
        axes.plot(classes, [found[name] for _, found in rows], marker='o', label=name)
    axes.set(xlabel='classes', ylabel='milliseconds per step', title=title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=90, bbox_inches='tight')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--classes', type=int, nargs='+', default=[10000, 50000, 200000])
    parser.add_argument('--batch', type=int, default=128, help='rows of the global batch (default: 128)')
    parser.add_argument('--shards', type=int, default=1, help='CPU devices; they share the cores (default: 1)')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--ratio', type=float, default=1.0, help='share of the classes per step (default: 1, all)')
    parser.add_argument('--plot', metavar='FILE', help='draw the times as a picture (needs matplotlib)')
    args = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // args.shards)
    os.environ.setdefault('OMP_NUM_THREADS', str(threads))      # before MXNet is imported
    title = 'D = %d, batch %d, %d shards, %s threads each' % (EMBEDDING, args.batch, args.shards,
                                                              os.environ['OMP_NUM_THREADS'])
    print(title)
    rows = []
    for num_classes in args.classes:
        found = measure(num_classes, args.batch, args.shards, args.rounds, args.ratio)
        if not rows:
            print('| classes | %s | ns per class | %s |' % (' | '.join('%s ms' % name for name in found),
                                                            ' | '.join(ratios(found))))
            print('|%s' % ('---|' * (2 + len(found) + len(ratios(found)))))
        rows.append((num_classes, found))
        ours = found.get('fast', found.get('sampled'))
        print('| %d | %s | %.0f | %s |' % (num_classes, ' | '.join('%.1f' % value for value in found.values()),
                                           1e6 * ours / num_classes,
                                           ' | '.join('%.2f' % value for value in ratios(found).values())), flush=True)
    if args.plot:
        plot(args.plot, rows, title)


if __name__ == '__main__':
    main()
