from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recognition.sharding import block_ranges, block_sizes, locate, shard_range


@given(st.integers(0, 10**9), st.integers(1, 300))
def test_shards_tile_the_classes(num_classes, num_shards):
    ranges = [shard_range(num_classes, shard, num_shards) for shard in range(num_shards)]
    sizes = [stop - start for start, stop in ranges]
    assert ranges[0][0] == 0 and ranges[-1][1] == num_classes
    assert all(left[1] == right[0] for left, right in zip(ranges, ranges[1:]))
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 10**6), st.integers(0, 5000), st.integers(1, 700))
def test_blocks_tile_the_shard(start, size, block_size):
    ranges = block_ranges(start, start + size, block_size)
    assert sum(stop - first for first, stop in ranges) == size
    assert all(0 < stop - first <= block_size for first, stop in ranges)
    assert block_sizes(size, block_size) == Counter(stop - first for first, stop in ranges)
    if ranges:
        assert ranges[0][0] == start and ranges[-1][1] == start + size
        assert all(left[1] == right[0] for left, right in zip(ranges, ranges[1:]))


def test_a_shard_that_does_not_exist_is_refused():
    for shard, num_shards in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ValueError):
            shard_range(10, shard, num_shards)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 30))
def test_every_label_is_found_once(labels, num_shards, block_size):
    labels = np.array(labels, np.int64)
    found = np.full(len(labels), -1)
    for shard in range(num_shards):
        ranges = block_ranges(*shard_range(100, shard, num_shards), block_size=block_size)
        for (start, _), (rows, columns) in zip(ranges, locate(labels, ranges)):
            assert (found[rows] == -1).all()
            found[rows] = columns + start
    assert (found == labels).all()


def test_labels_beyond_float_and_int32_are_found():
    labels = np.array([2**24 + 1, 2**33 + 5], np.int64)
    (rows, columns), (more, others) = locate(labels, [(0, 2**33), (2**33, 2**34)])
    assert list(rows) == [0] and list(columns) == [2**24 + 1]
    assert list(more) == [1] and list(others) == [5]
