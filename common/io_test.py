"""Measures how fast a disk gives the records of a set in random and in file order."""
import concurrent.futures
import os
import time

import numpy as np

from common.face_record import physical_memory
from common.images import CorruptImage, decode_bgr
from common.recordio import unpack

SECONDS = 5.0                        # longest time of each measurement
RANDOM_READERS = 8                   # random reads under way at once, as the indexed reader has
NUM_RANDOM = 20000                   # random reads at the most
BLOCK, MAX_SEQUENTIAL = 1 << 22, 1 << 30
NUM_DECODED = 300
WORTH = 1.3                          # how many times faster reading must become to be worth a conversion


class Rates:
    """Records per second: read at random, read front to back, decoded by all cores together."""

    def __init__(self, random, sequential, decode, fits_memory, is_cold):
        """fits_memory: the file does; is_cold: the system was asked to forget it before each measurement."""
        self.random, self.sequential, self.decode = random, sequential, decode
        self.fits_memory, self.is_cold = fits_memory, is_cold

    def verdict(self):
        """One sentence: will converting to a shuffled set pay?"""
        if self.random >= self.decode:
            return 'converting will not pay: random reads are faster than %d cores decode' % num_cores()
        if min(self.sequential, self.decode) < WORTH * self.random:
            return 'converting will not pay: reading front to back is hardly faster than reading at random'
        gain = min(self.sequential, self.decode) / self.random
        if self.fits_memory:
            return ('converting pays for the first epoch only (%.1f times faster): the file fits in memory and is '
                    'kept there, if nothing else needs it' % gain)
        return 'converting will pay: up to %.1f times faster with common/rec2shufrec.py' % gain

    def lines(self):
        """The report."""
        yield 'records/s at random        %10.0f' % self.random
        yield 'records/s front to back    %10.0f' % self.sequential
        yield 'images/s that can be decoded %8.0f' % self.decode
        if not self.is_cold:
            yield 'note: this system cannot be asked to forget a file; what it had in memory makes these rates too high'
        yield self.verdict()


def num_cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def measure(path, offsets, decode_rate, seconds=SECONDS):
    """Rates of one .rec file, which nobody may hold mapped meanwhile. offsets (n,): of its images, ascending."""
    with open(path, 'rb', buffering=0) as stream:
        file = stream.fileno()
        size = os.fstat(file).st_size
        is_cold = forget(file)
        random = random_rate(file, offsets, np.diff(offsets, append=size), seconds)
        forget(file)
        sequential = sequential_rate(file, size, size / len(offsets), seconds)
    return Rates(random, sequential, decode_rate, size < physical_memory() // 2, is_cold)


def forget(file):
    """Ask the system to drop what it holds of a file in memory; False where it cannot be asked."""
    if not hasattr(os, 'posix_fadvise'):
        return False
    os.fsync(file)                                             # what is not on the disk yet cannot be dropped
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def random_rate(file, offsets, sizes, seconds):
    """Records per second with RANDOM_READERS reads at once."""
    order = np.random.RandomState(0).permutation(len(offsets))[:NUM_RANDOM]
    begun = time.perf_counter()

    def read_some(positions):
        count = 0
        for position in positions:
            if time.perf_counter() - begun > seconds:
                break
            os.pread(file, int(sizes[position]), int(offsets[position]))
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(RANDOM_READERS) as pool:
        count = sum(pool.map(read_some, np.array_split(order, RANDOM_READERS)))
    return count / (time.perf_counter() - begun)


def sequential_rate(file, size, mean_size, seconds):
    """Records per second in blocks of 4 MB from the start of the file."""
    begun, done = time.perf_counter(), 0
    while done < min(size, MAX_SEQUENTIAL) and time.perf_counter() - begun < seconds:
        done += len(os.pread(file, BLOCK, done))
    return done / mean_size / (time.perf_counter() - begun)


def measure_decoding(face_set):
    """Images per second that all cores decode, from what one does with images in memory."""
    payloads = [bytes(face_set.read(position)) for position in range(min(NUM_DECODED, face_set.num_images))]
    begun = time.perf_counter()
    for payload in payloads:
        try:
            decode_bgr(unpack(payload)[1], (112, 112))
        except (CorruptImage, ValueError):
            pass  # counts as decoded: a bad image takes no longer
    return num_cores() * len(payloads) / (time.perf_counter() - begun)
