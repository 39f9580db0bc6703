"""Sequential reading with a shuffle buffer: which chunks of a set are read when, and the records out of them.

The set is cut into chunks of neighbouring records. In every epoch the chunks are put in a new order and laid out in
a circle that begins at a record drawn at random; rank r of R processes takes the part from r * n / R to
(r + 1) * n / R of it. That part is read front to back, chunk by chunk, in windows; the records of a window are
in memory together and come out in random order, while the next window is read.
"""
import collections
import concurrent.futures
import mmap
import threading
import weakref

import numpy as np

from common.errors import UserError
from common.recordio import RecordView
from recognition.batch_decoder import wait_for
from recognition.batch_iter import ORDER, WINDOW, seeded
from recognition.opened_records import open_many

CHUNKS_PER_BUFFER = 16               # far apart in the file: so many places are mixed with each other
CHUNKS_PER_SET = 64                  # at least, so that the order changes in a small set, too
MIN_CHUNK = 1 << 16                  # bytes


class ChunkTable:
    """Where the chunks of a set are. About as many bytes each; a chunk does not cross from file to file."""

    def __init__(self, sequential_set, kept, buffer_size):
        """kept: (n,) bool, which records are read at all; None for all. buffer_size: bytes in memory."""
        records, offsets, self._kept = sequential_set.record_file, sequential_set.offsets, kept
        size = max(MIN_CHUNK, min(buffer_size // CHUNKS_PER_BUFFER, records.size // CHUNKS_PER_SET))
        marks = [np.arange(start, stop, size) for start, stop in zip(records.bases[:-1], records.bases[1:])]
        begins = np.unique(np.searchsorted(offsets, np.concatenate(marks)))
        begins = begins[begins < len(offsets)]
        self._bounds = np.append(sequential_set.keys[begins], sequential_set.num_records)      # first records; all
        self._files = np.searchsorted(records.bases, offsets[begins], 'right') - 1
        self._starts = offsets[begins] - records.bases[self._files]            # bytes within the file
        ends = np.array([file.size for file in records.files])[self._files]
        same_file = np.append(self._files[1:] == self._files[:-1], False)
        self.sizes = np.where(same_file, np.append(self._starts[1:], 0), ends) - self._starts
        self._paths, self._file_firsts = [file.path for file in records.files], sequential_set.file_firsts
        self.counts = np.diff(self._bounds)
        if kept is not None:
            self.counts = np.add.reduceat(kept, self._bounds[:-1], dtype=np.int64)

    def __len__(self):
        return len(self.sizes)

    def read(self, chunk):
        """(RecordView, offsets (k,) of its records that are kept, their numbers in the file (k,))."""
        path, start = self._paths[self._files[chunk]], int(self._starts[chunk])
        view = RecordView('%s, from byte %d on' % (path, start), _read(path, start, int(self.sizes[chunk])))
        offsets = view.starts()
        first, stop = self._bounds[chunk:chunk + 2]
        if len(offsets) != stop - first:
            raise UserError('%s changed while it was read: %d records from byte %d on, there were %d'
                            % (path, len(offsets), start, stop - first))
        numbers = np.arange(first, stop) - self._file_firsts[self._files[chunk]]
        if self._kept is None:
            return view, offsets, numbers
        kept = self._kept[first:stop]
        return view, offsets[kept], numbers[kept]

    def path(self, chunk):
        return self._paths[self._files[chunk]]


def _read(path, start, size):
    """memoryview of a piece of a file, read in one go. Memory of its own, which goes back to the system at once."""
    data = memoryview(mmap.mmap(-1, size, access=mmap.ACCESS_COPY))
    try:
        with open(path, 'rb', buffering=0) as stream:
            stream.seek(start)
            filled = 0
            while filled < size:
                count = stream.readinto(data[filled:])
                if not count:
                    raise UserError('%s changed while it was read: it ends at byte %d' % (path, start + filled))
                filled += count
    except OSError as error:
        raise UserError('cannot read %s: %s' % (path, error.strerror)) from None
    return data


class EpochPlan:
    """What a process reads in an epoch: a list of windows, each a list of pieces (chunk, skip, take)."""

    def __init__(self, table, buffer_size, key, rank, world_size, shuffle):
        """table: JoinedChunks; key: (seed, epoch). skip, take: of the kept records of a chunk, in the file's order."""
        order, first = np.arange(len(table)), 0
        total = int(table.counts.sum())
        self._key, self._rank = key, rank if shuffle else None
        if shuffle:
            rng = seeded(np.random.RandomState(), *key, ORDER)
            order = table.shuffled(rng)
            first = int(rng.randint(total, dtype=np.int64))
        start, stop = total * rank // world_size, total * (rank + 1) // world_size
        pieces = _arc(order, table.counts[order], first + start, first + stop)
        sizes = table.sizes[[chunk for chunk, _, _ in pieces]]
        self.windows = _windows(pieces, sizes, buffer_size)
        self.counts = [sum(take for _, _, take in window) for window in self.windows]

    def order(self, window):
        """(count,) in which order the records of a window come out."""
        order = np.arange(self.counts[window])
        if self._rank is not None:
            seeded(np.random.RandomState(), *self._key, WINDOW, self._rank, window).shuffle(order)
        return order


def _arc(order, counts, start, stop):
    """Pieces (chunk, skip, take) of the positions [start, stop) of a circle of chunks."""
    ends = np.cumsum(np.concatenate([counts, counts]))
    first, last = np.searchsorted(ends, [start, stop - 1], 'right')
    pieces = []
    for place in range(first, last + 1):
        begin = ends[place] - counts[place % len(counts)]
        skip, end = max(start - begin, 0), min(stop, ends[place]) - begin
        if end > skip:
            pieces.append((int(order[place % len(order)]), int(skip), int(end - skip)))
    return pieces


def _windows(pieces, sizes, buffer_size):
    """Group pieces into as few windows as possible of which two fit in the buffer, all of about the same size."""
    total = int(sizes.sum())
    number = -(-2 * total // buffer_size)
    middles = np.cumsum(sizes) - sizes / 2
    groups = (middles * number / total).astype(np.int64)
    return [[pieces[place] for place in np.flatnonzero(groups == group)] for group in np.unique(groups)]


class Window:
    """Records of one window, in memory, in the order in which they are used."""

    def __init__(self, table, pieces, order, stopped):
        """stopped: threading.Event; once it is set, reading ends with CancelledError."""
        self._views, self._paths, self._sources, parts, opened = [], [], [], [], []
        for number, (chunk, skip, take) in enumerate(pieces):
            if stopped.is_set():
                raise concurrent.futures.CancelledError()
            view, offsets, numbers = table.read(chunk)
            self._views.append(view)
            self._paths.append(table.path(chunk))
            self._sources.append(table.source(chunk))
            rows = slice(skip, skip + take)
            parts.append((np.full(take, number), offsets[rows], numbers[rows]))
            opened.append(open_many(view, offsets[rows], table.classes(chunk)))
        self._view_of, self._offsets, self._numbers = (np.concatenate(part)[order].tolist() for part in zip(*parts))
        self._begins, self._ends, self._labels = (np.concatenate(part)[order].tolist() for part in zip(*opened))

    def payload(self, row):
        """Payload of a record; keeps the memory of its chunk alive."""
        return self._views[self._view_of[row]].read(self._offsets[row])

    def opened(self, row):
        """(encoded image, uint8 (n,), label) of a record; None if it must be opened by itself."""
        label = self._labels[row]
        if label < 0:
            return None
        return self._views[self._view_of[row]].bytes[self._begins[row]:self._ends[row]], label

    def source(self, row):
        """Number of the set that a record is in."""
        return self._sources[self._view_of[row]]

    def name(self, row):
        """What to call a record in a message."""
        return 'record %d of %s' % (self._numbers[row], self._paths[self._view_of[row]])


class RecordStream:
    """The records of an epoch, in order: (window, row) pairs. A thread reads one window ahead."""

    def __init__(self, table, plan, skipped=0):
        """skipped: records that are left out at the beginning; windows of which nothing is left are not read."""
        self._table, self._plan = table, plan
        ends = np.cumsum(plan.counts)
        self._next_number = int(np.searchsorted(ends, skipped, 'right'))       # of the window that is being read
        self._skip = int(skipped - ends[self._next_number] + plan.counts[self._next_number])
        self._spans = collections.deque()                      # (window, first row, stop) in memory
        self._waiting = 0                                      # rows in them
        self._before = self._newest = lambda: None             # weak references to the last two windows
        self._stopped = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(1, 'reader')
        self._future = self._pool.submit(self._read, self._next_number)

    def _read(self, number):
        return Window(self._table, self._plan.windows[number], self._plan.order(number), self._stopped)

    def ready(self, count):
        """Whether take(count) returns without waiting."""
        return self._waiting >= count or self._future is None or self._future.done()

    @property
    def is_read(self):
        """Whether only the last window is left, and the thread has nothing to do."""
        return self._next_number == len(self._plan.windows) and self._before() is None

    def take(self, count):
        """The next `count` records. What went wrong in the thread is raised here, every time."""
        while self._waiting < count:
            self._read_ahead()
            wait_for([self._future])
            window, size = self._future.result(), self._plan.counts[self._next_number]
            self._add(window, self._skip, size)
            self._next_number, self._skip, self._future = self._next_number + 1, 0, None
            self._before, self._newest = self._newest, weakref.ref(window)
        if self._before() is None:                             # two windows at most are in memory
            self._read_ahead()
        return self._cut(count)

    def _add(self, window, first, stop):
        self._spans.append((window, first, stop))
        self._waiting += stop - first

    def _cut(self, count):
        rows = []
        while len(rows) < count:
            window, first, stop = self._spans.popleft()
            cut = min(stop, first + count - len(rows))
            rows.extend((window, row) for row in range(first, cut))
            if cut < stop:
                self._spans.appendleft((window, cut, stop))
        self._waiting -= count
        return rows

    def _read_ahead(self):
        if self._future is None and self._next_number < len(self._plan.windows):
            self._future = self._pool.submit(self._read, self._next_number)

    def put_back(self, rows):
        """Rows that were taken come again, before the others."""
        self._spans.extendleft((window, row, row + 1) for window, row in reversed(rows))
        self._waiting += len(rows)

    def close(self):
        """End the thread; what it reads at the moment is given up."""
        self._stopped.set()
        self._pool.shutdown()
