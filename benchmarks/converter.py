"""How fast rec2shufrec converts, against the limit: copying the same file and waiting until it is on the disk.

    python -m benchmarks.converter [--images 40000] [--size 7000] [--rounds 5]

Copy and conversions take turns; figures are medians of the rounds, and so are the ratios, each taken within one
round: figures of different runs cannot be compared. MB/s are bytes of the source per second.
  copy          cp, then fsync
  one pass      rec2shufrec, in a process of its own, with memory enough for all records
  two passes    the same with --memory of an eighth of the file: records go through temporary files
The source is in the page cache; a first conversion that is not counted leaves Python's modules compiled.
The last column is what a conversion reads from the disk, as a share of the source, if the source is not in the page
cache: more than 1 would mean that records are read again, out of order.
"""
import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from common.face_record import Property, write_property
from common.recordio import RecordWriter, pack
from tests.conftest import ROOT

NUM_CLASSES = 1000


def make_set(folder, num_images, size):
    """Random bytes in place of images: the converter does not look at them."""
    data = np.random.RandomState(0).bytes(size + num_images)
    path = os.path.join(folder, 'train.rec')
    with RecordWriter(path, os.path.join(folder, 'train.idx')) as writer:
        for key in range(num_images):
            writer.write(key, pack(key % NUM_CLASSES, data[key:key + size], key))
    write_property(folder, Property(NUM_CLASSES, 112, 112))
    return path


def copy(path, folder, memory, cache):
    del memory, cache
    target = os.path.join(folder, 'copy.rec')
    subprocess.run(['cp', path, target], check=True)
    handle = os.open(target, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def convert(path, folder, memory, cache):
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE='', PYTHONPYCACHEPREFIX=cache)
    subprocess.run([sys.executable, '-m', 'common.rec2shufrec', '--input', os.path.dirname(path), '--output',
                    os.path.join(folder, 'out'), '--memory', str(memory)], check=True, cwd=str(ROOT),
                   stderr=subprocess.DEVNULL, env=environment)


def rate(action, path, folder, memory):
    """MB of the source per second."""
    target, cache = tempfile.mkdtemp(dir=folder), os.path.join(folder, 'modules')
    try:
        start = time.perf_counter()
        action(path, target, memory, cache)
        return os.path.getsize(path) / 1e6 / (time.perf_counter() - start)
    finally:
        shutil.rmtree(target)
        os.sync()                                              # the next one begins with an idle disk


def share_read(action, path, folder, memory):
    """Bytes read from the disk, of those of a source that only the disk holds."""
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    rate(action, path, folder, memory)
    return (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) * 512 / os.path.getsize(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--images', type=int, default=40000, help='records of the set (default %(default)s)')
    parser.add_argument('--size', type=int, default=7000, help='bytes of an image (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--folder', help='where to work, on the disk in question (default: the temporary folder)')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source = os.path.join(folder, 'source')
        os.mkdir(source)
        path = make_set(source, args.images, args.size)
        os.sync()
        megabytes = os.path.getsize(path) >> 20
        actions = ('copy + fsync', copy, 0), ('one pass', convert, 2 * megabytes + 64), \
            ('two passes', convert, max(16, megabytes // 8))
        rate(convert, path, folder, actions[1][2])
        rates = np.array([[rate(action, path, folder, memory) for _, action, memory in actions]
                          for _ in range(args.rounds)])
        shares = [share_read(action, path, folder, memory) for _, action, memory in actions]
        print('%d records of %d bytes, %d MB; median of %d rounds; %d cores\n\n'
              '| | MB/s | of the copy | read from the disk |\n|---|---|---|---|'
              % (args.images, args.size, megabytes, args.rounds, os.cpu_count()))
        for (name, _, _), speed, ratio, share in zip(actions, np.median(rates, axis=0),
                                                     np.median(rates / rates[:, :1], axis=0), shares):
            print('| %s | %.0f | %.2f | %.3f |' % (name, speed, ratio, share))


if __name__ == '__main__':
    main()
