"""The three matrix products of a class block, all by FullyConnected and its own gradient.

On CPU these run in oneDNN, up to four times as fast as `dot`; on GPU both are cuBLAS.
"""
from common.mxnet_loader import mx
from recognition.class_block import set_entries

# Factors of float16 operands. Numbers of a center are about 0.01, of a softmax 1e-8 to 1, of a row times its factor
# 1e-5 to 1; float16 is exact to 3 digits from 6e-5 to 65504, and nothing below 3e-8.
CENTER_SCALE, PART_SCALE, ROW_SCALE = 64.0, 64.0, 4.0
LARGEST_HALF = 65504.0


class Product:
    """y = x W^T [+ b], and later its gradients.

    x (N, D), weight (K, D), bias (K,) or None; out (N, K) receives the product and may be changed in
    place afterwards. grads: arrays shaped like x and weight that backward() fills; it uses what is in x then.
    """

    def __init__(self, x, weight, bias, out, grads):
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

    def __init__(self, x, weight, bias, out, grads, native):
        self._x, self._weight, self._grads, self._native = x, weight, grads, native
        operands = [self._operand(x, 1.0), self._operand(weight, CENTER_SCALE)]
        result = mx.nd.FullyConnected(*operands, num_hidden=weight.shape[0], no_bias=True)
        self._take(result, CENTER_SCALE, out)
        if bias is not None:
            mx.nd.broadcast_add(out, bias.reshape((1, -1)), out=out)

    def _operand(self, array, scale):
        half = mx.nd.clip((array * scale).astype('float16'), -LARGEST_HALF, LARGEST_HALF)
        return half if self._native else half.astype('float32')

    @staticmethod
    def _take(result, scale, out):
        half = mx.nd.clip(result.astype('float16'), -LARGEST_HALF, LARGEST_HALF)
        mx.nd._internal._mul_scalar(half.astype('float32'), scalar=1.0 / scale, out=out)

    def backward(self, d_output, places):
        d_x, d_weight = self._grads
        if places is not None:
            entries = mx.nd.gather_nd(d_output, places)                            # (n,)
            set_entries(d_output, places, mx.nd.zeros_like(entries))
        part, rows = self._operand(d_output, PART_SCALE), self._operand(self._x, ROW_SCALE)
        self._take(mx.nd.dot(part, rows, transpose_a=True), PART_SCALE * ROW_SCALE, d_weight)
        self._take(mx.nd.dot(part, self._operand(self._weight, CENTER_SCALE)), PART_SCALE * CENTER_SCALE, d_x)
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
