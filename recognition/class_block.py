"""Centers of neighbouring classes with their momentum: the unit of computing, of memory and of checkpoint files.

K classes of a block, D embedding size, J centers per class (mostly 1).
"""
import numpy as np

from common.mxnet_loader import mx
from recognition.sharding import block_ranges

INIT_SCALE = 0.01
INIT_CHUNK = 1024      # classes per random stream; a constant of the format, seeds depend on it
BIAS_LR_MULT = 2.0     # the field's habit for the bias of this layer; it has no weight decay
BLOCK_ELEMENTS = 25 << 17
MAX_BLOCK_CLASSES = 65536
PART_BYTES = 4 << 20   # most that a checkpoint's writer or reader holds of a block at a time


def default_block_size(embedding_size):
    """Classes per block: 3.3 million weights keep both operator calls and scratch memory few."""
    return min(MAX_BLOCK_CLASSES, max(1024, BLOCK_ELEMENTS // embedding_size))


def initial_centers(seed, start, stop, embedding_size, center=0):
    """Normal(0, 0.01) centers of classes [start, stop), float32 (stop - start, D).

    center: which of the centers of each class. A function of (seed, class, center) alone, so that the cut into shards
    and blocks does not matter, and the first centers are the same however many there are.
    """
    stream = [center] if center else []
    first = start // INIT_CHUNK * INIT_CHUNK
    centers = np.empty((stop - start, embedding_size), np.float32)
    for chunk in range(first, stop, INIT_CHUNK):
        rng = np.random.Generator(np.random.PCG64([seed, chunk // INIT_CHUNK] + stream))
        values = rng.standard_normal((INIT_CHUNK, embedding_size), np.float32)
        low, high = max(start, chunk), min(stop, chunk + INIT_CHUNK)
        np.multiply(values[low - chunk:high - chunk], INIT_SCALE, out=centers[low - start:high - start])
    return centers


class ClassBlock:
    """Centers of the neighbouring classes [start, stop), with their momentum, on one context.

    weight, momentum (J K, D) float32: the first center of each class, then the second of each, so that every J-th part
    is a contiguous (K, D) array. bias, bias_momentum (K,) float32 or None.
    """

    def __init__(self, start, stop, weight, momentum, bias=None, bias_momentum=None, sub_centers=1):
        """sub_centers: J."""
        self.start, self.stop, self.sub_centers = start, stop, sub_centers
        self.weight, self.momentum = weight, momentum
        self.bias, self.bias_momentum = bias, bias_momentum

    @classmethod
    def initial(cls, start, stop, embedding_size, context, seed, with_bias=False, sub_centers=1):
        def zeros(*shape):
            return mx.nd.zeros(shape, ctx=context)
        size = stop - start
        shape = (sub_centers * size, embedding_size)
        bias = (zeros(size), zeros(size)) if with_bias else (None, None)
        block = cls(start, stop, mx.nd.empty(shape, ctx=context), zeros(*shape), *bias, sub_centers=sub_centers)
        edges = [start] + list(range(start // INIT_CHUNK * INIT_CHUNK + INIT_CHUNK, stop, INIT_CHUNK)) + [stop]
        for first, last in zip(edges[:-1], edges[1:]):                     # no second copy of the block
            for center, centers in enumerate(block.centers):
                centers[first - start:last - start] = initial_centers(seed, first, last, embedding_size, center)
        return block

    @property
    def num_classes(self):
        """Those whose centers are here."""
        return len(self.weight) // self.sub_centers

    @property
    def centers(self):
        """J views (K, D) of weight."""
        return self._by_center(self.weight)

    def arrays(self):
        """Name -> array of everything that a checkpoint holds."""
        named = {'centers': self.weight, 'momentum': self.momentum,
                 'bias': self.bias, 'bias_momentum': self.bias_momentum}
        return {name: array for name, array in named.items() if array is not None}

    def row_ranges(self, name):
        """Half-open ranges of the block's classes, counted from its first, whose rows have at most PART_BYTES."""
        row_bytes = 4 * int(np.prod(self.row_shape(name)))
        return block_ranges(0, self.num_classes, max(1, PART_BYTES // row_bytes))

    def rows(self, name, first=0, last=None):
        """Classes [first, last) of one of arrays(), as a checkpoint holds them: NumPy (n, D), or (n, J, D) if J > 1,
        or (n,). first and last count from the block's first class."""
        parts = [part[first:last].asnumpy() for part in self._by_center(self.arrays()[name])]
        return parts[0] if len(parts) == 1 else np.stack(parts, axis=1)

    def set_rows(self, name, values, first=0):
        """Take in what rows() gives."""
        parts = self._by_center(self.arrays()[name])
        last = first + len(values)
        for number, part in enumerate(parts):
            part[first:last] = values if len(parts) == 1 else values[:, number]

    def _by_center(self, array):
        """J views (K, D) of an array like weight; [array] of one like bias."""
        if array.ndim < 2:
            return [array]
        size = self.num_classes
        return [array[center * size:(center + 1) * size] for center in range(self.sub_centers)]

    def row_shape(self, name):
        """Shape of what rows() has of one class: (D,), (J, D) or ()."""
        shape = self.arrays()[name].shape[1:]
        return shape if self.sub_centers == 1 or not shape else (self.sub_centers,) + shape

    def update(self, d_weight, d_bias, lr, momentum, wd, moves=True):
        """SGD with momentum, in place: v <- momentum v - lr (gradient + wd w), w <- w + v.

        moves False: v alone; w stays, and what it would be is left in d_weight (and d_bias).
        """
        mx.nd.sgd_mom_update(self.weight, d_weight, self.momentum, lr=lr, momentum=momentum, wd=wd,
                             out=self.weight if moves else d_weight)
        if self.bias is not None:
            mx.nd.sgd_mom_update(self.bias, d_bias, self.bias_momentum, lr=lr * BIAS_LR_MULT,
                                 momentum=momentum, wd=0.0, out=self.bias if moves else d_bias)


def inverse_root(square):
    """1 / sqrt(square), and 0 for 0: a zero vector has cosine 0 with all and gets no gradient."""
    positive = square > 0
    return positive * mx.nd.rsqrt(square + (1 - positive))


class PickedBlock(ClassBlock):
    """Some classes of a block, copied out for one step and written home by the update. The others are not touched."""

    def __init__(self, home, columns, weight, momentum):
        """columns (k,) sorted whole numbers: places of the classes in the block. weight, momentum (>= J k, D): arrays
        to copy into; momentum is filled by the update only, so blocks may share it."""
        self._home, self._size = home, len(columns)
        index = np.concatenate([columns + center * home.num_classes for center in range(home.sub_centers)])
        self._index = mx.nd.array(index, ctx=home.weight.context, dtype=np.int32)
        self._momentum = momentum[:len(index)]
        super().__init__(home.start, home.stop, self._take(home.weight, weight[:len(index)]), None,
                         self._take(home.bias), None, home.sub_centers)

    def _places(self, array):
        """Where the classes' entries are in an array of the block."""
        return self._index if array.ndim > 1 else self._index[:self._size]

    def _take(self, array, out=None):
        return None if array is None else mx.nd.take(array, self._places(array), out=out)

    def update(self, *arguments):
        """As ClassBlock; then centers and momentum, and the bias with its own, go back to their places."""
        self.momentum = self._take(self._home.momentum, self._momentum)
        self.bias_momentum = self._take(self._home.bias_momentum)
        super().update(*arguments)
        for name, values in self.arrays().items():
            set_entries(self._home.arrays()[name], self._places(values).reshape((1, -1)), values)


def set_entries(array, places, values):
    """array[places] = values, in place. places (d, n) int32: the first d indices of n entries or rows."""
    mx.nd._internal._scatter_set_nd(array, values, places, shape=array.shape, out=array)
