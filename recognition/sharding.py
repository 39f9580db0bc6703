"""Which classes belong to which shard and block. Plain integers and NumPy; no MXNet.

Ranges are half-open [start, stop) in global class ids. Uneven sizes are normal; there are no padding classes.
"""
import numpy as np


def shard_range(num_classes, shard, num_shards):
    """Return (start, stop) of one shard. Sizes differ by one at most; surplus shards are empty."""
    if num_shards < 1 or not 0 <= shard < num_shards:
        raise ValueError('shard %d of %d does not exist' % (shard, num_shards))
    base, extra = divmod(num_classes, num_shards)
    start = shard * base + min(shard, extra)
    return start, start + base + (shard < extra)


def block_ranges(start, stop, block_size):
    """Return the list of (start, stop) blocks of at most `block_size` classes that tile a shard in order.

    The blocks of a shard are of nearly equal size, so that no small block is left over.
    """
    num_classes = stop - start
    num_blocks = -(-num_classes // block_size)
    return [tuple(start + edge for edge in shard_range(num_classes, block, num_blocks))
            for block in range(num_blocks)]


def block_sizes(num_classes, block_size):
    """{classes of a block: number of such blocks} of what block_ranges gives, without a list of them."""
    num_blocks = -(-num_classes // block_size)
    if not num_blocks:
        return {}
    base, extra = divmod(num_classes, num_blocks)
    counts = {base + 1: extra, base: num_blocks - extra}
    return {size: count for size, count in counts.items() if count}


def locate(labels, ranges):
    """Find the rows of the batch whose label lies in each range.

    labels: (N,) int64 class ids. ranges: sorted, adjoining half-open ranges.
    Returns one (rows, columns) pair of int64 arrays per range; columns count from the range's start.
    """
    if not ranges:
        return []
    order = np.argsort(labels, kind='stable')
    edges = np.array([start for start, _ in ranges] + [ranges[-1][1]], dtype=np.int64)
    cuts = np.searchsorted(labels[order], edges)
    return [(order[first:last], labels[order[first:last]] - start)
            for first, last, (start, _) in zip(cuts[:-1], cuts[1:], ranges)]
