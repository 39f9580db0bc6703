"""Train on some people of a folder of aligned photographs, verify on the others: one row per variant and seed.

python -m benchmarks.real_faces FOLDER [--network demo] [--steps 600] [--seeds 0 1] [--variants NAME ...] [--json FILE]

FOLDER: PERSON/PHOTO.jpg, aligned, 112x112, as for the tests (lfw_a). 600 people are trained, pairs of the others are
verified. Every variant trains from scratch with the same steps, batch and learning rate; what differs is named. Each
run is a process of its own with all cores; accuracy is that of ten folds, with its deviation over the folds.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
COMMON = ['--dataset', 'casia', '--set', 'val_targets=real', '--set', 'loss_s=32', '--lr', '0.05', '--ckpt', '0',
          '--frequent', '5']
TWO_SHARDS = ['--devices', 'cpu:2', '--per-batch-size', '32']
VARIANTS = {
    'all classes, 2 shards': TWO_SHARDS,
    'set shuffled by rec2shufrec': TWO_SHARDS + ['--set', 'is_shuffled_rec=True'],
    '1 shard': ['--devices', 'cpu:1', '--per-batch-size', '64'],
    'sample ratio 0.3': TWO_SHARDS + ['--sample-ratio', '0.3'],
    'sample ratio 0.1': TWO_SHARDS + ['--sample-ratio', '0.1'],
    'half precision': TWO_SHARDS + ['--fp16-scale', 'dynamic'],
}


def prepare(photos, folder, num_pairs):
    """Sets `indexed` and `shuffled` of FOLDER's first people with pairs of the others."""
    from common import rec2shufrec
    from tests.make_real import write_real_set
    write_real_set(pathlib.Path(photos), folder / 'indexed', num_pairs=num_pairs)
    code = rec2shufrec.main(['--input', str(folder / 'indexed'), '--output', str(folder / 'shuffled'), '--copy-vers'])
    if code:
        raise SystemExit(code)


def train(name, folder, network, steps, seed):
    """One run -> {'accuracy': of the last verification, 'deviation', 'loss', 'minutes'}."""
    flags = VARIANTS[name]
    data = folder / ('shuffled' if 'is_shuffled_rec=True' in flags else 'indexed')
    milestones = '%d,%d' % (steps * 7 // 10, steps * 9 // 10)
    command = [sys.executable, str(ROOT / 'train_parall.py'), '--network', network, '--dataset-path', str(data),
               *COMMON, *flags, '--lr-steps', milestones, '--max-steps', str(steps), '--verbose', str(steps),
               '--seed', str(seed), '--end-epoch', '1000', '--models-root', str(folder / 'models')]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    minutes = (time.perf_counter() - begin) / 60
    verified = re.findall(r'with flip (\d\.\d+)\D+(\d\.\d+)?', done.stderr)
    if done.returncode or not verified:
        raise SystemExit(done.stderr)
    losses = re.findall(r' loss (\d+\.\d+)', done.stderr)
    return {'accuracy': float(verified[-1][0]), 'deviation': float(verified[-1][1] or 'nan'),
            'loss': float(losses[-1]), 'minutes': minutes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('photos', metavar='FOLDER')
    parser.add_argument('--network', default='demo')
    parser.add_argument('--steps', type=int, default=600, help='of 64 images (default: 600)')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1])
    parser.add_argument('--pairs', type=int, default=3000, help='pairs to verify on (default: 3000)')
    parser.add_argument('--variants', nargs='+', choices=list(VARIANTS), default=list(VARIANTS)[:-1], metavar='NAME',
                        help='of %s (default: all but half precision, which is slow on CPUs)' % ', '.join(VARIANTS))
    parser.add_argument('--json', metavar='FILE', help='append one JSON line per run')
    args = parser.parse_args()
    print('%s, %d steps of 64 images' % (args.network, args.steps))
    print('| variant | seed | accuracy on people not trained | loss | minutes |\n|---|---|---|---|---|')
    with tempfile.TemporaryDirectory() as folder:
        prepare(args.photos, pathlib.Path(folder), args.pairs)
        for seed in args.seeds:
            for name in args.variants:
                found = train(name, pathlib.Path(folder), args.network, args.steps, seed)
                print('| %s | %d | %.4f ± %.4f | %.2f | %.1f |' % (name, seed, found['accuracy'], found['deviation'],
                                                                 found['loss'], found['minutes']), flush=True)
                if args.json:
                    with open(args.json, 'a', encoding='utf-8') as stream:
                        json.dump(dict(found, variant=name, seed=seed, network=args.network, steps=args.steps), stream)
                        stream.write('\n')


if __name__ == '__main__':
    main()
