"""How fast networks train, and what the fast PReLU gains on CPUs.

    python -m benchmarks.backbone [--networks y1 r18] [--batch-size 16] [--devices 1] [--rounds 3]

One step is forward and backward on random images through Module, without update; threads are cores / devices unless
OMP_NUM_THREADS is set. The ways of writing PReLU take turns, after one step each that does not count; every figure is
the best of the rounds. Compare the ratios of one run, not figures of different runs.
"""
import argparse
import os
import time

import numpy as np

from config import generate_config

WAYS = 'plain', 'fast'


def make_step(network, way, batch_size, num_devices):
    """A function that takes one step of the preset `network`."""
    from common.mxnet_loader import mx
    from recognition.build_symbol import build_symbol
    from symbols import get_backbone

    symbol = build_symbol(generate_config(network, 'demo', 'arcface'), get_backbone, prelu=way)
    module = mx.mod.Module(symbol, label_names=None, context=[mx.cpu(device) for device in range(num_devices)])
    shape = (batch_size * num_devices, 3, 112, 112)
    module.bind([mx.io.DataDesc('data', shape, 'uint8')])
    module.init_params(mx.init.Xavier(rnd_type='gaussian', factor_type='out', magnitude=2))
    rng = np.random.RandomState(0)
    batch = mx.io.DataBatch([mx.nd.array(rng.randint(0, 256, shape), dtype='uint8')])
    d_embedding = mx.nd.array(rng.randn(*module.output_shapes[0][1]))

    def step():
        module.forward(batch, is_train=True)
        module.backward([d_embedding])
        mx.nd.waitall()
    return step


def seconds(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(network, batch_size, num_devices, rounds):
    """Print one line of the table: images per second of each way, and their ratio."""
    steps = [make_step(network, way, batch_size, num_devices) for way in WAYS]
    times = [[seconds(step) for step in steps] for _ in range(rounds + 1)]
    rates = [batch_size * num_devices / min(column) for column in zip(*times[1:])]
    print('| %s | %d | %d | %.1f | %.1f | %.2f |' % (network, batch_size, num_devices, *rates, rates[1] / rates[0]),
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--networks', nargs='+', default=['y1', 'r18'], help='presets of config.py')
    parser.add_argument('--batch-size', type=int, default=16, help='images per device and step (default %(default)s)')
    parser.add_argument('--devices', type=int, default=1, help='CPU devices (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=3)
    args = parser.parse_args()
    threads = max(1, os.cpu_count() // args.devices)
    os.environ.setdefault('OMP_NUM_THREADS', str(threads))      # before MXNet is imported
    print('forward + backward, 112x112, images/s; %d cores, OMP_NUM_THREADS=%s; best of %d rounds\n'
          % (os.cpu_count(), os.environ['OMP_NUM_THREADS'], args.rounds))
    print('| network | batch per device | devices | plain PReLU | fast PReLU | ratio |\n|---|---|---|---|---|---|')
    for network in args.networks:
        compare(network, args.batch_size, args.devices, args.rounds)


if __name__ == '__main__':
    main()
