"""Small shuffled sets for tests, as rec2shufrec makes them. Every function that makes one returns the path of its
train.rec as text.
"""
import os

import numpy as np

from common.chunk_index import ChunkIndexWriter, chunk_index_path
from common.face_record import Property, write_property
from common.recordio import RecordFile, pack
from common.sequential_set import part_path
from tests.make_sets import jpeg, write_set


def sequential_set(folder, numbers, images=(), extra=None):
    """Image i has label numbers[i]; no index; `property` says it was shuffled. images: {i: encoded image}."""
    images = dict(images)
    payloads = {key: pack(number, images.get(key, jpeg(key)), key) for key, number in enumerate(numbers)}
    path = write_set(folder, payloads, has_index=False)
    write_property(str(folder), Property(int(np.max(numbers)) + 1, 112, 112, dict({'shuffled': '1'}, **(extra or {}))))
    return path


def in_parts(folder, sizes):
    """A set of numbered images in several files; the train.rec itself is not there."""
    first = 0
    for number, size in enumerate(sizes):
        name = os.path.basename(part_path('train.rec', number, len(sizes)))[:-4]
        write_set(folder, {key: pack(key, jpeg(key), key) for key in range(first, first + size)}, name, False)
        first += size
    write_property(str(folder), Property(first, 112, 112, {'shuffled': '1', 'records': str(first)}))
    return str(folder / 'train.rec')


def write_chunk_index(path):
    """The light index that a converter would have written."""
    index = ChunkIndexWriter()
    with RecordFile(path) as record_file:
        index.add(record_file.starts())
        index.write(chunk_index_path(path), record_file.size)
