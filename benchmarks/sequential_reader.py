"""How fast a shuffled set is read front to back, against the limit (decoding alone) and MXNet's own reader.

    python -m benchmarks.sequential_reader [--images 40000] [--threads 1 2] [--rounds 5]

A set of 112x112 JPEGs of about 7 KB is made in a temporary folder. The readers take turns, an epoch each; ratios are
medians over the rounds, each to the limit of its round.
  limit        cv2.imdecode of the same bytes, held in memory, on as many threads
  sequential   SequentialFaceIter: shuffled in memory, mirrored, uint8 batches
  indexed      FaceImageIter on the same file: random access
  native       mx.io.ImageRecordUInt8Iter, front to back, not shuffled, asked for the same number of threads: the most
               that a reader made on it could reach
  peer         mx.io.ImageRecordIter (float32), asked for two threads
"""
import argparse
import os
import tempfile
import time

import cv2
import numpy as np

from benchmarks.reader import BATCH, NUM_CLASSES, SHAPE, decode_alone, make_set, rate, read_indexed, read_mxnet
from common.face_record import Property, write_property
from common.mxnet_loader import mx
from recognition.sequential_iter import SequentialFaceIter

TARGETS = 'targets: sequential >= 0.85 of the limit and >= 1.4 x mx.io.ImageRecordIter'


def read_sequential(path, num_images, threads):
    """Images per second of an epoch of SequentialFaceIter, from reset to reset: all reading is in it."""
    images = SequentialFaceIter(path, BATCH, SHAPE, threads=threads, rand_mirror=True)
    try:
        start, count = time.perf_counter(), 0
        for batch in images:
            batch.data[0].wait_to_read()
            count += BATCH
        images.reset()
        return count / (time.perf_counter() - start)
    finally:
        images.close()


def read_native(path, num_images, threads):
    return rate(mx.io.ImageRecordUInt8Iter(path_imgrec=path, data_shape=SHAPE, batch_size=BATCH, rand_mirror=True,
                                           shuffle=False, preprocess_threads=threads, verbose=False), num_images)


READERS = {
    'limit: cv2.imdecode alone': decode_alone,
    'sequential reader (threaded)': read_sequential,
    'indexed reader': read_indexed,
    'native: mx.io.ImageRecordUInt8Iter': read_native,
    'mx.io.ImageRecordIter (float32), 2 threads': lambda path, count, _: read_mxnet(mx.io.ImageRecordIter, path, count,
                                                                                    2),
}


def compare(path, num_images, threads, rounds):
    """Print the lines of the table for one number of threads."""
    rates = np.array([[reader(path, num_images, threads) for reader in READERS.values()] for _ in range(rounds)])
    medians, ratios = np.median(rates, axis=0), np.median(rates / rates[:, :1], axis=0)
    for name, median, ratio in zip(READERS, medians, ratios):
        print('| %s | %d | %.0f | %.2f |' % (name, threads, median, ratio))
    print('| sequential / ImageRecordIter | %d | | %.2f |' % (threads, np.median(rates[:, 1] / rates[:, -1])))


def opening(path):
    """Seconds until a reader of the set is ready, its buffer filled."""
    start = time.perf_counter()
    SequentialFaceIter(path, BATCH, SHAPE).close()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--images', type=int, default=40000, help='images of the set (default %(default)s)')
    parser.add_argument('--threads', type=int, nargs='+', default=[1, 2], help='numbers of threads to try')
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, size = make_set(folder, args.images)
        write_property(folder, Property(NUM_CLASSES, *SHAPE[1:], extra={'shuffled': '1'}))
        print('%d JPEGs of 112x112, %.1f KB; batch %d; %d rounds; %d cores; OpenCV %s, MXNet %s; opened in %.2f s\n'
              % (args.images, size / 1000, BATCH, args.rounds, os.cpu_count(), cv2.__version__, mx.__version__,
                 opening(path)))
        print('| reader | threads | images/s | of the limit |\n|---|---|---|---|')
        for threads in args.threads:
            compare(path, args.images, threads, args.rounds)
    print('\n' + TARGETS)


if __name__ == '__main__':
    main()
