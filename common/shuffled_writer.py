"""Writing a shuffled set: records in their final order into train.rec or its parts, with a light index for each."""
import hashlib
import os

import numpy as np

from common.ahead import ahead
from common.chunk_index import ChunkIndexWriter, chunk_index_path
from common.errors import UserError
from common.face_record import FLOAT32, SPLIT, SPLIT24, class_id
from common.recordio import RecordFile, RecordWriter, frame_many, unpack
from common.sequential_set import part_path

_SCALAR = np.dtype([('flag', '<u4'), ('label', '<f4'), ('id', '<u8'), ('id2', '<u8')])
_PAIR = np.dtype(_SCALAR.descr + [('high', '<f4'), ('low', '<f4')])


def label_format(num_classes):
    """The form in which so many class ids are exact."""
    return SPLIT24 if num_classes > SPLIT else FLOAT32


def pack_headers(numbers, ids, form):
    """Label parts of many payloads, as face_record.pack_class_id makes them: an array, an item per record.

    numbers: class ids, int64 (n,); ids: uint64 (n,); form: FLOAT32 or SPLIT24.
    """
    headers = np.zeros(len(numbers), _PAIR if form == SPLIT24 else _SCALAR)
    headers['id'] = ids
    if form == SPLIT24:
        headers['flag'], headers['high'], headers['low'] = 2, numbers // SPLIT, numbers % SPLIT
    else:
        headers['label'] = numbers
    return headers


def part_paths(folder, num_parts):
    """Names of the files of a set."""
    whole = os.path.join(folder, 'train.rec')
    return [whole] if num_parts == 1 else [part_path(whole, number, num_parts) for number in range(num_parts)]


def write_parts(folder, batches, num_records, num_parts, form, advance):
    """Write batches (see Shuffler.batches) into num_parts files whose counts differ by one at most.

    advance(records, bytes) is called as they are written.
    """
    ends = [number * num_records // num_parts for number in range(1, num_parts + 1)]
    framed = ahead(_framed(_pieces(batches, ends), form))
    for path in part_paths(folder, num_parts):
        index = ChunkIndexWriter()
        with RecordWriter(path) as writer:
            for pieces, lengths, size, is_last in framed:
                index.add(writer.write_framed(pieces, lengths))
                advance(len(lengths), size)
                if is_last:
                    break
        index.write(chunk_index_path(path), os.path.getsize(path))


def _framed(batches, form):
    """Yield (pieces, lengths, bytes of images, is last of its part)."""
    for entries, images, is_last in batches:
        labels = pack_headers(entries['number'], entries['id'], form)
        yield frame_many(labels, images, entries['odd'] != 0) + (int(entries['size'].sum()), is_last)


def _pieces(batches, ends):
    """Yield (entries, images, is last of its part); ends: number of the record after each part."""
    first, ends = 0, iter(ends)
    end = next(ends)
    for entries, images in batches:
        start = 0
        while start < len(images):
            stop = min(len(images), start + end - first)
            first += stop - start
            yield entries[start:stop], images[start:stop], first == end
            start, end = stop, next(ends, end) if first == end else end


class Fingerprint:
    """Of a multiset of (class id, encoded image): equal for equal ones, whatever the order; 128 bits."""

    def __init__(self):
        self.total, self.count = 0, 0

    def add(self, numbers, images):
        """numbers: list of int; images: list of bytes-like."""
        for number, image in zip(numbers, images):
            digest = hashlib.blake2b(image, digest_size=16, salt=number.to_bytes(16, 'little')).digest()
            self.total = (self.total + int.from_bytes(digest, 'little')) % (1 << 128)
        self.count += len(images)

    def __eq__(self, other):
        return (self.total, self.count) == (other.total, other.count)


def fingerprint_of(folder, num_parts, form, advance):
    """Fingerprint of a shuffled set as it is on the disk. UserError for a damaged file."""
    found = Fingerprint()
    for path in part_paths(folder, num_parts):
        with RecordFile(path) as record_file:
            for offset, payload in record_file.walk():
                header, image = unpack(payload)
                try:
                    found.add([class_id(header, form)], [image])
                except ValueError as error:
                    raise UserError('%s: record at offset %d: %s' % (path, offset, error)) from None
                record_file.forget(offset, len(payload))
                advance(1, len(payload))
    return found
