"""The three matrix products of a class block, all by FullyConnected and its own gradient.

On CPU these run in oneDNN, up to four times as fast as `dot`; on GPU both are cuBLAS.
"""
import contextlib

import numpy as np

from common.mxnet_loader import mx
from recognition.class_block import set_entries

# Factors of float16 operands. Numbers of a center are about 0.01, of a softmax 1e-8 to 1, of a row times its factor
# 1e-5 to 1; float16 is exact to 3 digits from 6e-5 to 65504, and nothing below 3e-8.
CENTER_SCALE, PART_SCALE, ROW_SCALE = 64.0, 64.0, 4.0
LARGEST_HALF = 65504.0


class Buffers:
    """Arrays on one context that products use again: what an array is for -> the array. They grow when needed."""

    def __init__(self, context):
        self._context, self._flat = context, {}

    def get(self, purpose, shape, dtype):
        size = int(np.prod(shape))
        flat = self._flat.get((purpose, dtype))
        if flat is None or flat.size < size:
            flat = self._flat[purpose, dtype] = mx.nd.empty((size,), ctx=self._context, dtype=dtype)
        return flat[:size].reshape(shape)


class Product:
    """y = x W^T [+ b], and later its gradients.

    x (N, D), weight (K, D), bias (K,) or None; out (N, K) receives the product and may be changed in
    place afterwards. grads: arrays shaped like x and weight that backward() fills; it uses what is in x then.
    buffers: Buffers, of which products that follow one another may have the same; here none are needed.
    """

    def __init__(self, x, weight, bias, out, grads, _buffers):
        mx.autograd.mark_variables([x, weight], grads, 'write')
        # new handles on the same memory: an array enters one graph only
        inputs = [x, weight] if bias is None else [x, weight, bias.detach()]
        self._recorded = out.detach()
        with mx.autograd.record():
            mx.nd.FullyConnected(*inputs, num_hidden=weight.shape[0], no_bias=bias is None,
                                 out=self._recorded)

    def backward(self, d_output, _places):
        """Given d_output (N, K), which may be changed, fill the gradient arrays.

        places (2, n) int32: rows and columns of label entries, or None; here they are entries as all others.
        """
        self._recorded.backward(d_output)


class HalfProduct:
    """As Product, with operands and results rounded to float16, for half precision runs.

    native: the device multiplies float16 itself; else float32 numbers that were rounded are multiplied. Operands go in
    with a power of two that keeps them inside the range of float16; what still is too large becomes 65504. Label
    entries are left out of the float16 product and added in float32: they may be of any size.
    """

    def __init__(self, x, weight, bias, out, grads, buffers, native):
        self._x, self._weight, self._grads, self._buffers, self._native = x, weight, grads, buffers, native
        rows, centers = self._operand('rows', x, 1.0), self._operand('centers', weight, CENTER_SCALE)
        with self._rounded('part', CENTER_SCALE, out) as result:
            mx.nd.FullyConnected(rows, centers, num_hidden=len(weight), no_bias=True, out=result)
        if bias is not None:
            mx.nd.broadcast_add(out, bias.reshape((1, -1)), out=out)

    def _operand(self, purpose, array, scale):
        """scale * array, rounded to float16, in a buffer; a float32 one if the device multiplies only these."""
        wide = self._buffers.get(purpose, array.shape, 'float32')
        half = self._buffers.get(purpose, array.shape, 'float16')
        mx.nd.cast(mx.nd._internal._mul_scalar(array, scalar=scale, out=wide), dtype='float16', out=half)
        mx.nd.clip(half, -LARGEST_HALF, LARGEST_HALF, out=half)
        return half if self._native else mx.nd.cast(half, dtype='float32', out=wide)

    @contextlib.contextmanager
    def _rounded(self, purpose, scale, out):
        """Gives the array for a product; then its numbers, rounded to float16 and divided by scale, are in out."""
        half = self._buffers.get(purpose, out.shape, 'float16')
        yield half if self._native else out
        if not self._native:
            mx.nd.cast(out, dtype='float16', out=half)
        mx.nd.clip(half, -LARGEST_HALF, LARGEST_HALF, out=half)
        mx.nd._internal._mul_scalar(mx.nd.cast(half, dtype='float32', out=out), scalar=1.0 / scale, out=out)

    def backward(self, d_output, places):
        d_x, d_weight = self._grads
        if places is not None:
            entries = mx.nd.gather_nd(d_output, places)                            # (n,)
            set_entries(d_output, places, mx.nd.zeros_like(entries))
        part, rows = self._operand('part', d_output, PART_SCALE), self._operand('rows', self._x, ROW_SCALE)
        centers = self._operand('centers', self._weight, CENTER_SCALE)
        with self._rounded('d_rows', PART_SCALE * CENTER_SCALE, d_x) as result:
            mx.nd.dot(part, centers, out=result)
        with self._rounded('centers', PART_SCALE * ROW_SCALE, d_weight) as result:     # the operand is not needed now
            mx.nd.dot(part, rows, transpose_a=True, out=result)
        if places is not None:
            self._add_entries(places, entries.reshape((-1, 1)))

    def _add_entries(self, places, entries):
        """Gradients of the label entries; several rows may have one label, each row has but one."""
        rows, columns = places
        (d_x, d_weight), n = self._grads, (1, -1)
        set_entries(d_x, rows.reshape(n), mx.nd.take(d_x, rows) + entries * mx.nd.take(self._weight, columns))
        same = mx.nd.broadcast_equal(columns.reshape((-1, 1)), columns.reshape(n)).astype('float32')       # (n, n)
        added = mx.nd.dot(same, entries * mx.nd.take(self._x, rows))
        set_entries(d_weight, columns.reshape(n), mx.nd.take(d_weight, columns) + added)
