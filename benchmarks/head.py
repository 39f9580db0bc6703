"""Time of one step of the classification layer beside its floor, alternating in one run.

python -m benchmarks.head [--classes 50000] [--batch 128] [--shards 1] [--rounds 7]

floor: per block the three matrix products with the fastest MXNet operators (FullyConnected and its gradient) and
one SGD pass over weight and momentum, on the same devices with the same threads: nothing of softmax, norms, margin.
"""
import argparse
import os
import statistics
import time

EMBEDDING = 512


class Floor:
    """Products and SGD of one shard, block by block, nothing else."""

    def __init__(self, mx, num_classes, num_rows, context, block_size):
        self.mx = mx
        sizes = [min(block_size, num_classes - start) for start in range(0, num_classes, block_size)]
        self.blocks = [(mx.nd.random.normal(0, 0.01, (size, EMBEDDING), ctx=context),
                        mx.nd.zeros((size, EMBEDDING), ctx=context)) for size in sizes]
        largest = max(sizes)
        self.features = mx.nd.random.normal(shape=(num_rows, EMBEDDING), ctx=context)
        self.d_features = mx.nd.zeros_like(self.features)
        self.d_weight = mx.nd.zeros((largest, EMBEDDING), ctx=context)
        self.logits = mx.nd.zeros((num_rows * largest,), ctx=context)
        self.d_logits = mx.nd.random.normal(shape=(num_rows * largest,), ctx=context)

    def step(self):
        from recognition.product import Product
        rows = len(self.features)
        for weight, momentum in self.blocks:
            size = len(weight)
            out, d_out = (flat[:rows * size].reshape((rows, size)) for flat in (self.logits, self.d_logits))
            product = Product(self.features, weight, None, out, [self.d_features, self.d_weight[:size]])
            product.backward(d_out)
            self.mx.nd.sgd_mom_update(weight, self.d_weight[:size], momentum, lr=1e-9, momentum=0.9, wd=5e-4,
                                      out=weight)


def seconds(mx, function):
    mx.nd.waitall()
    begin = time.perf_counter()
    function()
    mx.nd.waitall()
    return time.perf_counter() - begin


def measure(num_classes, num_rows, num_shards, rounds):
    """Milliseconds (floor, fast, lean), medians over the rounds; the first round warms up."""
    import numpy as np

    from common.mxnet_loader import mx
    from recognition.class_block import default_block_size
    from recognition.collective import LocalCollective
    from recognition.margin import Margin
    from recognition.parall_module import Head
    from recognition.sharding import shard_range
    contexts = [mx.cpu(device) for device in range(num_shards)]
    floors = []
    for shard, context in enumerate(contexts):
        start, stop = shard_range(num_classes, shard, num_shards)
        floors.append(Floor(mx, stop - start, num_rows, context, default_block_size(EMBEDDING)))
    heads = [Head.initial(num_classes, EMBEDDING, contexts, Margin(1, 0.5, 0), 0, LocalCollective(), keep_logits=keep)
             for keep in (True, False)]
    embedding = mx.nd.random.normal(shape=(num_rows, EMBEDDING))
    labels = np.random.RandomState(0).randint(0, num_classes, num_rows)
    runs = [lambda: [floor.step() for floor in floors]]
    runs += [lambda head=head: head.forward_backward(embedding, labels, (0.01, 0.9, 5e-4)) for head in heads]
    times = [[1000 * seconds(mx, run) for run in runs] for _ in range(rounds + 1)][1:]
    return [statistics.median(column) for column in zip(*times)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--classes', type=int, nargs='+', default=[10000, 50000, 200000])
    parser.add_argument('--batch', type=int, default=128, help='rows of the global batch (default: 128)')
    parser.add_argument('--shards', type=int, default=1, help='CPU devices; they share the cores (default: 1)')
    parser.add_argument('--rounds', type=int, default=7)
    args = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // args.shards)
    os.environ.setdefault('OMP_NUM_THREADS', str(threads))      # before MXNet is imported
    print('D = %d, batch %d, %d shards, %s threads each' % (EMBEDDING, args.batch, args.shards,
                                                             os.environ['OMP_NUM_THREADS']))
    print('| classes | floor ms | fast ms | lean ms | fast / floor | lean / floor |')
    print('|---|---|---|---|---|---|')
    for num_classes in args.classes:
        floor, fast, lean = measure(num_classes, args.batch, args.shards, args.rounds)
        print('| %d | %.1f | %.1f | %.1f | %.2f | %.2f |' % (num_classes, floor, fast, lean, fast / floor,
                                                             lean / floor))


if __name__ == '__main__':
    main()
