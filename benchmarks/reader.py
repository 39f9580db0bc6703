"""How fast training images are read, against the limit (decoding alone) and MXNet's own reader.

    python -m benchmarks.reader [--images 40000] [--turn 10000] [--threads 1 2] [--rounds 7]

A set of 112x112 JPEGs of about 7 KB is made in a temporary folder. The readers take short turns. Rates are medians
of the rounds, and so are the ratios, each taken within one round: figures of different runs cannot be compared.
  limit      cv2.imdecode of the same bytes, held in memory, on as many threads: no file, no labels, no batches
  indexed    FaceImageIter: shuffled, mirrored, uint8 batches
  peers      mx.io.ImageRecordUInt8Iter and mx.io.ImageRecordIter (float32) on the same file: not shuffled over the
             whole set; asked for the same number of threads
"""
import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time

import cv2
import numpy as np
from tqdm import tqdm

from common.face_record import Property, write_property
from common.mxnet_loader import mx
from common.recordio import RecordFile, RecordWriter, pack, unpack
from recognition.image_iter import FaceImageIter

SHAPE = (3, 112, 112)
BATCH = 128
TEXTURES = 400
NUM_CLASSES = 1000


def texture(rng):
    """JPEG of about 7 KB: coarse shapes and some fine noise, as in a photograph."""
    coarse = cv2.resize(rng.randint(0, 256, (9, 9, 3)).astype(np.uint8), SHAPE[:0:-1], interpolation=cv2.INTER_CUBIC)
    fine = cv2.GaussianBlur(rng.normal(0, 26, (112, 112, 3)), (3, 3), 0)
    image = np.clip(coarse + fine, 0, 255).astype(np.uint8)
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def make_set(folder, num_images):
    """im2rec layout, images in turn; returns the path of the .rec and bytes per image."""
    rng = np.random.RandomState(0)
    textures = [texture(rng) for _ in range(TEXTURES)]
    path = os.path.join(folder, 'train.rec')
    with RecordWriter(path, os.path.join(folder, 'train.idx')) as writer:
        for key in tqdm(range(num_images), 'making a set', leave=False):
            writer.write(key, pack(key % NUM_CLASSES, textures[key % TEXTURES], key))
    write_property(folder, Property(NUM_CLASSES, *SHAPE[1:]))
    return path, sum(map(len, textures)) / len(textures)


def decode_alone(path, num_images, threads):
    """Images per second of cv2.imdecode."""
    with RecordFile(path) as record_file:
        encoded = [np.frombuffer(unpack(payload)[1], np.uint8) for _, payload in record_file.walk()][:num_images]
    parts = [encoded[start:start + 64] for start in range(0, len(encoded), 64)]

    def decode(part):
        for image in part:
            cv2.imdecode(image, cv2.IMREAD_COLOR)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(decode, parts))
        return len(encoded) / (time.perf_counter() - start)


def read_indexed(path, num_images, threads):
    """Images per second of an epoch of FaceImageIter."""
    images = FaceImageIter(path, BATCH, SHAPE, threads=threads, rand_mirror=True)
    try:
        return rate(images, num_images)
    finally:
        images.close()


def read_mxnet(iterator, path, num_images, threads):
    return rate(iterator(path_imgrec=path, data_shape=SHAPE, batch_size=BATCH, rand_mirror=True, shuffle=True,
                         preprocess_threads=threads, verbose=False), num_images)


def rate(batches, num_images):
    """Images per second, up to num_images; the first batch is left out."""
    next(batches).data[0].wait_to_read()
    start, count = time.perf_counter(), 0
    for batch in batches:
        batch.data[0].wait_to_read()
        count += BATCH
        if count >= num_images:
            break
    return count / (time.perf_counter() - start)


READERS = {
    'limit: cv2.imdecode alone': decode_alone,
    'indexed reader': read_indexed,
    'mx.io.ImageRecordUInt8Iter': lambda *args: read_mxnet(mx.io.ImageRecordUInt8Iter, *args),
    'mx.io.ImageRecordIter (float32)': lambda *args: read_mxnet(mx.io.ImageRecordIter, *args),
}


def compare(path, num_images, threads, rounds):
    """Print the table for one number of threads."""
    rates = np.array([[reader(path, num_images, threads) for reader in READERS.values()] for _ in range(rounds)])
    medians, ratios = np.median(rates, axis=0), np.median(rates / rates[:, :1], axis=0)
    for name, median, ratio in zip(READERS, medians, ratios):
        print('| %s | %d | %.0f | %.2f |' % (name, threads, median, ratio))


def index_lines(path, count):
    """Write an index of `count` records."""
    with open(path, 'w') as stream:
        for start in range(0, count, 100000):
            stream.write(''.join('%d\t%d\n' % (key, key * 7144) for key in range(start, min(start + 100000, count))))


def load_index(count):
    """Print time and memory of reading an index of `count` lines (Linux); in a process of its own, for the memory."""
    code = ('import re, sys, time; from common.record_index import read_index; start = time.perf_counter();'
            'read_index(sys.argv[1]); print(time.perf_counter() - start,'
            're.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read()).group(1))')
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'train.idx')
        index_lines(path, count)
        output = subprocess.run([sys.executable, '-c', code, path], check=True, capture_output=True, text=True).stdout
    seconds, peak_kib = map(float, output.split())
    print('\nindex of %d lines: %.2f s, peak memory of the process %.0f MiB' % (count, seconds, peak_kib / 1024))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--images', type=int, default=40000, help='images of the set (default %(default)s)')
    parser.add_argument('--threads', type=int, nargs='+', default=[1, 2], help='numbers of threads to try')
    parser.add_argument('--turn', type=int, default=10000, help='images read per turn (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--index-lines', type=int, default=10000000, help='0: leave this part out')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, size = make_set(folder, args.images)
        print('%d JPEGs of 112x112, %.1f KB; batch %d; median of %d rounds; %d cores; OpenCV %s, MXNet %s\n'
              % (args.images, size / 1000, BATCH, args.rounds, os.cpu_count(), cv2.__version__, mx.__version__))
        print('| reader | threads | images/s | of the limit |\n|---|---|---|---|')
        for threads in args.threads:
            compare(path, args.turn, threads, args.rounds)
    if args.index_lines:
        load_index(args.index_lines)


if __name__ == '__main__':
    main()
