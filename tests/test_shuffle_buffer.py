"""What a process reads in an epoch, and how much of it is in memory."""
import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from common.sequential_set import open_sequential_set
from recognition.joined_sets import JoinedChunks
from recognition.shuffle_buffer import ChunkTable, EpochPlan
from tests.make_shuffled import sequential_set


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=12), rank_count=st.integers(1, 4),
       seed=st.integers(0, 2**40), epoch_number=st.integers(0, 9), buffer_size=st.integers(1, 3000),
       shuffle=st.booleans())
def test_plans_cover_everything_once(counts, rank_count, seed, epoch_number, buffer_size, shuffle):
    total = sum(counts)
    if total < rank_count:
        return
    table = JoinedChunks([StubTable(counts)], [None])
    seen = []
    for rank in range(rank_count):
        plan = EpochPlan(table, buffer_size, (seed, epoch_number), rank, rank_count, shuffle)
        assert sum(plan.counts) in (total // rank_count, -(-total // rank_count)) and min(plan.counts) > 0
        for number, window in enumerate(plan.windows):
            rows = [(chunk, row) for chunk, skip, take in window for row in range(skip, skip + take)]
            assert sorted(plan.order(number)) == list(range(len(rows))) and len(rows) == plan.counts[number]
            seen += rows
    assert sorted(seen) == [(chunk, row) for chunk, count in enumerate(counts) for row in range(count)]


class StubTable:
    """Chunks of 100 bytes a record, without files."""

    def __init__(self, counts):
        self.counts = np.array(counts)
        self.sizes = self.counts * 100 + 1

    def __len__(self):
        return len(self.counts)


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr('recognition.shuffle_buffer.MIN_CHUNK', 6000)
    path = sequential_set(tmp_path, range(200))
    with open_sequential_set(path) as found:
        table = JoinedChunks([ChunkTable(found, None, 25000)], [None])
    assert len(table) > 30 and table.sizes.sum() == os.path.getsize(path) and table.counts.sum() == 200
    plan = EpochPlan(table, 25000, (0, 0), 0, 1, True)
    sizes = [sum(table.sizes[chunk] for chunk, _, _ in window) for window in plan.windows]
    assert max(sizes) < 25000 / 2 + table.sizes.max() and len(plan.windows) > 10
