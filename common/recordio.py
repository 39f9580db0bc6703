"""RecordIO files (.rec) and their indexes (.idx): mapped reading, writing, packing of labelled images.

On disk, all numbers little-endian:
    record   magic uint32 0xced7230a | lrec uint32 | data | zeros up to a multiple of 4
    lrec     top 3 bits: 0 whole record, 1 first part, 2 middle part, 3 last part; low 29 bits: bytes of data
             (a payload that holds the magic at a multiple of 4 is cut there; the reader puts the magic back)
    payload  flag uint32 | label float32 | id uint64 | id2 uint64 | flag x float32 | encoded image
             (flag 0: one class label in `label`; flag > 0: that many labels follow, `label` is unused)
    .idx     text, one line per record: key, tab, offset of the record in the .rec
A float32 label holds class ids exactly up to 2**24 = 16,777,216.
"""
import array
import collections
import errno
import mmap
import os
import struct

import numpy as np

from common.errors import UserError

MAGIC = 0xced7230a
MAGIC_BYTES = struct.pack('<I', MAGIC)
MAX_DATA = (1 << 29) - 1             # bytes of data that lrec can state
WHOLE, FIRST, MIDDLE, LAST = range(4)
PIECES_AT_ONCE = 1024                # that systems take in one call, IOV_MAX
SENT_AT_ONCE = 1 << 24               # bytes

_HEAD = struct.Struct('<II')         # magic, lrec
_LABEL = struct.Struct('<IfQQ')      # flag, label, id, id2
HEAD_SIZE = _HEAD.size
LABEL_SIZE = _LABEL.size

Header = collections.namedtuple('Header', 'flag label id id2')


def pack(label, image, key=0):
    """One payload: label (a number, or a sequence of numbers) and encoded image (bytes).

    ValueError for a whole number that float32 cannot hold: it would come back as another class.
    """
    numbers = np.atleast_1d(np.asarray(label, dtype=np.float64))
    stored = numbers.astype('<f4')
    lost = (stored != numbers) & (numbers == np.floor(numbers))
    if lost.any():
        raise ValueError('label %d is not exactly representable as float32 (whole numbers up to 2**24 are)'
                         % numbers[lost][0])
    if np.ndim(label) == 0:
        return _LABEL.pack(0, stored[0], key, 0) + bytes(image)
    return _LABEL.pack(len(stored), 0.0, key, 0) + stored.tobytes() + bytes(image)


def unpack(payload):
    """Payload -> (Header, encoded image); nothing is copied.

    Header.label is a float for flag 0, else a float32 array (flag,). ValueError if the payload is too short.
    """
    if len(payload) < LABEL_SIZE:
        raise ValueError('a record of %d bytes has no label: %d are needed' % (len(payload), LABEL_SIZE))
    flag, label, key, key2 = _LABEL.unpack_from(payload)
    if flag == 0:
        return Header(flag, label, key, key2), payload[LABEL_SIZE:]
    end = LABEL_SIZE + 4 * flag
    if end > len(payload):
        raise ValueError('%d labels do not fit in a record of %d bytes' % (flag, len(payload)))
    labels = np.frombuffer(payload, '<f4', flag, LABEL_SIZE)
    return Header(flag, labels, key, key2), payload[end:]


def padded(size):
    """Bytes that `size` bytes of data take in the file."""
    return (size + 3) & ~3


class RecordView:
    """Records in memory. Any number of threads may read them at once."""

    def __init__(self, path, view):
        """path: what messages call it; view: memoryview of bytes that begin with a record."""
        self.path, self.size, self._view = path, len(view), view
        self.bytes = np.frombuffer(view, np.uint8)
        self._words = self.bytes[:self.size & ~3].view('<u4')

    def read(self, offset):
        """Payload of the record at `offset` as a memoryview; a record of several parts is joined into bytes.

        UserError names file and offset if no record begins there or if the file ends inside it.
        """
        kind, start, stop = self._part(offset)
        if kind == WHOLE:
            return self._view[start:stop]
        return MAGIC_BYTES.join(bytes(self._view[start:stop]) for start, stop in self._parts(offset))

    def end_of(self, offset):
        """Offset just after the record at `offset`, padding included. UserError as for read."""
        for _, stop in self._parts(offset):
            end = padded(stop)
        return end

    def walk(self, start=0):
        """Yield (offset, payload) of all records from `start` to the end of the file."""
        offset = start
        while offset < self.size:
            kind, begin, stop = self._part(offset)
            if kind == WHOLE:
                yield offset, self._view[begin:stop]
                offset = padded(stop)
            else:
                yield offset, self.read(offset)
                offset = self.end_of(offset)

    def starts(self):
        """Offsets of all records, int64 (n,). Looks at their headers only, a million in half a second.

        UserError as for read.
        """
        found, offset, head_at, view = array.array('q'), 0, _HEAD.unpack_from, self._view
        last = self.size - HEAD_SIZE
        while offset < self.size:
            magic, lrec = head_at(view, offset) if offset <= last else (0, 0)
            end = offset + HEAD_SIZE + lrec
            found.append(offset)
            if magic == MAGIC and lrec <= MAX_DATA and end <= self.size:
                offset = (end + 3) & ~3
            else:
                offset = self.end_of(offset)                   # several parts, or an error
        return np.frombuffer(found, np.int64)

    def words(self, offsets, index):
        """uint32 number `index` of the records at many offsets (multiples of 4): 0 magic, 1 lrec, 2 flag ...

        Beyond the end of the file it is the file's last number.
        """
        return self._words[np.minimum((offsets >> 2) + index, len(self._words) - 1)]

    def _part(self, offset):
        """(kind, start, stop) of the data of one part. UserError if it is not whole."""
        if not 0 <= offset <= self.size - HEAD_SIZE:
            raise UserError('%s truncated: record at offset %d needs at least %d bytes, the file has %d'
                            % (self.path, offset, HEAD_SIZE, self.size))
        magic, lrec = _HEAD.unpack_from(self._view, offset)
        if magic != MAGIC:
            raise UserError('%s: no record at offset %d (magic 0x%08x instead of 0x%08x): the file is damaged, or '
                            'the .idx belongs to another file' % (self.path, offset, magic, MAGIC))
        start = offset + HEAD_SIZE
        stop = start + (lrec & MAX_DATA)
        if stop > self.size:
            raise UserError('%s truncated: record at offset %d needs %d bytes, the file ends after %d'
                            % (self.path, offset, stop - offset, self.size - offset))
        return lrec >> 29, start, stop

    def _parts(self, offset):
        """Yield (start, stop) of the data of all parts of one record."""
        kind, start, stop = self._part(offset)
        if kind not in (WHOLE, FIRST):
            raise UserError('%s: offset %d is inside a record of several parts, not at its beginning'
                            % (self.path, offset))
        yield start, stop
        while kind in (FIRST, MIDDLE):
            part = padded(stop)
            kind, start, stop = self._part(part)
            if kind not in (MIDDLE, LAST):
                raise UserError('%s: record at offset %d lacks its last part (another begins at %d)'
                                % (self.path, offset, part))
            yield start, stop


class RecordFile(RecordView):
    """A .rec file mapped read-only. Any number of threads may read it at once."""

    def __init__(self, path):
        """UserError if the file is missing, empty, or does not begin with a record."""
        self.path = os.path.abspath(path)
        try:
            with open(self.path, 'rb') as stream:
                self.size = os.fstat(stream.fileno()).st_size
                if self.size == 0:
                    raise UserError('%s is empty: copy or convert the set again' % self.path)
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UserError('cannot read %s: %s' % (self.path, error.strerror)) from None
        self._view = memoryview(self._map)
        self._words = np.frombuffer(self._map, '<u4', self.size // 4)
        if self._view[:4] != MAGIC_BYTES:
            self.close()
            raise UserError('%s is not a RecordIO file: it does not begin with the magic number' % self.path)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Give the map up; payloads that are still held stay valid, and keep it alive until they go."""
        if self._map is None:
            return
        self._view.release()
        self._words = None
        try:
            self._map.close()
        except BufferError:
            pass  # payloads are still in use: the map goes with the last of them
        self._map = None

    def find_magic(self, offset, end):
        """Multiples of 4 in a range of the file at which the magic number stands, int64 (n,). Reads all of it."""
        return np.flatnonzero(self._words[offset >> 2:end >> 2] == MAGIC) * 4 + offset

    def range(self, offset, end):
        """Memoryview of a range of the file."""
        return self._view[offset:end]

    def will_need(self, offset, size):
        """Ask the system to read this range soon, without waiting; does nothing where it cannot be asked."""
        begin, end = offset - offset % mmap.PAGESIZE, min(offset + size, self.size)
        if hasattr(self._map, 'madvise') and begin < end:
            self._map.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def forget(self, offset, size):
        """Let go of the memory of this range, which has been read; it can be read again. Nothing once it is closed."""
        mapped = self._map                                     # another thread may close it
        if hasattr(mapped, 'madvise'):
            begin = offset - offset % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, begin, min(offset + size, self.size) - begin)


class RecordWriter:
    """Writes a .rec, and its .idx if a name is given, under temporary names until commit().

    As a context manager it commits at the end and removes everything after an error.
    """

    def __init__(self, path, path_index=None):
        self._paths = [os.path.abspath(name) for name in (path, path_index) if name is not None]
        self._partial = ['%s.%d.partial' % (name, os.getpid()) for name in self._paths]
        self._streams = []
        self._offset = self._sent = 0
        try:
            for name in self._partial:
                self._streams.append(open(name, 'wb', buffering=1 << 20))
        except OSError as error:
            self.abort()
            raise UserError('cannot write %s: %s' % (error.filename, error.strerror)) from None

    def __enter__(self):
        return self

    def __exit__(self, error_type, *error):
        if error_type is None:
            self.commit()
        else:
            self.abort()

    def write(self, key, payload):
        """Append one record; returns its offset. UserError if the disk refuses."""
        payload = bytes(payload)
        if len(payload) > MAX_DATA:
            raise ValueError('record %d has %d bytes, RecordIO allows %d' % (key, len(payload), MAX_DATA))
        offset = self._offset
        data = _framed(payload) + bytes(-len(payload) % 4)
        try:
            self._streams[0].write(data)
            if len(self._streams) > 1:
                self._streams[1].write(b'%d\t%d\n' % (key, offset))
        except OSError as error:
            raise UserError('cannot write %s: %s' % (self._paths[0], error.strerror)) from None
        self._offset += len(data)
        return offset

    def write_framed(self, pieces, lengths):
        """Append records as frame_many gives them; returns their offsets, int64 (n,). UserError if the disk refuses."""
        stream = self._streams[0]
        try:
            stream.flush()
            write_pieces(stream.fileno(), pieces)
            if self._offset - self._sent >= SENT_AT_ONCE and hasattr(os, 'posix_fadvise'):
                os.posix_fadvise(stream.fileno(), self._sent, self._offset - self._sent, os.POSIX_FADV_DONTNEED)
                self._sent = self._offset                      # the disk writes it now, not only when all is there
        except OSError as error:
            raise UserError('cannot write %s: %s' % (self._paths[0], error.strerror)) from None
        ends = self._offset + np.cumsum(lengths)
        self._offset = int(ends[-1])
        return ends - lengths

    def commit(self):
        """Everything reaches the disk, then gets its name; the .rec first. UserError if it does not fit."""
        try:
            for stream in self._streams:
                stream.flush()
                os.fsync(stream.fileno())
            if os.fstat(self._streams[0].fileno()).st_size != self._offset:
                raise OSError(errno.EIO, 'the disk kept fewer bytes than were written')
            for stream, partial, path in zip(self._streams, self._partial, self._paths):
                stream.close()
                os.replace(partial, path)
        except OSError as error:
            self.abort()
            raise UserError('cannot write %s: %s' % (self._paths[0], error.strerror)) from None

    def abort(self):
        """Remove what was written."""
        for stream, partial in zip(self._streams, self._partial):
            try:
                stream.close()
            except OSError:
                pass  # a full disk refuses the last flush; the file goes anyway
            if os.path.exists(partial):
                os.remove(partial)


def frame_many(labels, images, may_hold_magic):
    """Bytes of many records as (pieces, lengths): a list of bytes-like, and the bytes of each record, int64 (n,).

    labels: array (n,) of the label parts of the payloads, of a dtype of a multiple of 4 bytes; images: n bytes-like,
    which are not copied; may_hold_magic: bool (n,), false where no multiple of 4 of the image holds the magic number.
    """
    sizes = np.fromiter(map(len, images), np.int64, len(images)) + labels.itemsize
    starts = np.zeros(len(labels), [('padding', '<u4'), ('magic', '<u4'), ('lrec', '<u4'), ('label', labels.dtype)])
    starts['magic'], starts['lrec'], starts['label'] = MAGIC, sizes, labels
    view, step = memoryview(starts.view(np.uint8)), starts.itemsize
    padding = -sizes % 4
    before = np.concatenate([[0], padding[:-1]])               # what a record is padded with goes with the next one
    firsts = (np.arange(len(labels)) * step + 4 - before).tolist()
    pieces = [None] * (2 * len(images)) + [bytes(padding[-1])]
    pieces[0:-1:2] = [view[first:stop] for first, stop in zip(firsts, range(step, len(view) + 1, step))]
    pieces[1:-1:2] = images
    lengths = sizes + HEAD_SIZE + padding
    in_label = labels.view('<u4').reshape(len(labels), -1) == MAGIC
    for row in np.flatnonzero(in_label.any(axis=1) | may_hold_magic):
        payload = b''.join((view[(row + 1) * step - labels.itemsize:(row + 1) * step], images[row]))
        pieces[2 * row:2 * row + 2] = bytes(before[row]), _framed(payload)
        lengths[row] = len(pieces[2 * row + 1]) + padding[row]
    return pieces, lengths


def write_pieces(handle, pieces):
    """Write bytes-like pieces to an open file, one behind the other, without joining them. OSError."""
    for first in range(0, len(pieces), PIECES_AT_ONCE):
        part = pieces[first:first + PIECES_AT_ONCE]
        written = _writev(handle, part)
        if written < sum(map(len, part)):                      # the disk is nearly full, or 2 GB is the limit
            rest = memoryview(b''.join(part))[written:]
            while len(rest):
                rest = rest[os.write(handle, rest):]


def _join_and_write(handle, pieces):
    return os.write(handle, b''.join(pieces))


_writev = getattr(os, 'writev', _join_and_write)               # not every system has it


def _framed(payload):
    """The bytes of one record without its padding; a payload is cut wherever the magic stands at a multiple of 4."""
    cuts = _magic_positions(payload)
    starts, stops = [0] + [cut + 4 for cut in cuts], cuts + [len(payload)]
    kinds = [FIRST] + [MIDDLE] * (len(cuts) - 1) + [LAST] if cuts else [WHOLE]
    return b''.join(_HEAD.pack(MAGIC, kind << 29 | (stop - start)) + payload[start:stop]
                    for kind, start, stop in zip(kinds, starts, stops))


def _magic_positions(payload):
    positions = []
    found = payload.find(MAGIC_BYTES)
    while found >= 0:
        if found % 4 == 0:
            positions.append(found)
        found = payload.find(MAGIC_BYTES, found + (4 if found % 4 == 0 else 1))
    return positions
