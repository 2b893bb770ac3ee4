"""A short causal convolution of each channel by itself, with its silu, on the host, a block of tokens at a time.

Only the input is saved for the backward. With w taps a block reads w - 1 tokens before its own; before the first token
are zeros, or earlier tokens that are given.
"""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy
from numpy.lib.stride_tricks import as_strided

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, as_float32
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import row_blocks, run
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert, fill, float32_for, widened
from pynative.tape.autograd import Function


def _windows(rows: Array, taps: int) -> Array:
    """A view [w, tokens, ...] of rows [w - 1 + tokens, ...]: the rows that each tap multiplies."""
    shape = taps, len(rows) - taps + 1, *rows.shape[1:]
    return as_strided(rows, shape, (rows.strides[0], *rows.strides), writeable=False)


def _sums(rows: Array, taps: Array, out: Array) -> Array:
    """Fill out, contiguous float32 [tokens, b, c], with the sum over taps [w, b c] times their rows of
    [w - 1 + tokens, b, c], and return it. einsum multiplies and adds in one go over memory; with an axis b that the
    taps lack it would go along that one, twelve times slower."""
    flat = out.reshape(len(out), -1)
    np.einsum("wsc,wc->sc", _windows(rows.reshape(len(rows), -1), len(taps)), taps, out=flat)
    return out


class _Convolution:
    """The convolution of x [s, b, c] behind earlier tokens [w - 1, b, c] (None: zeros): taps float32 [w, c], bias
    [c]."""

    def __init__(self, x: Array, before: Array | None, weight: Tensor, bias: Tensor | None) -> None:
        self.x, self.before = x, before
        self.taps = np.ascontiguousarray(as_float32(weight)[:, 0].T)
        self.of_rows = np.tile(self.taps, (1, x.shape[1]))
        """The taps of whole rows, [w, b c]."""
        self.bias = None if bias is None else as_float32(bias)
        self.blocks = row_blocks(len(x), x[0].size * 4)

    def inputs(self, start: int, stop: int) -> Array:
        """Float32 [w - 1 + tokens, b, c]: the tokens start..stop-1, and the w - 1 before them."""
        reach = len(self.taps) - 1
        if start >= reach:
            return widened(self.x[start - reach : stop])
        rows = np.zeros((reach + stop - start, *self.x.shape[1:]), np.float32)
        convert(self.x[:stop], rows[reach - start :])
        if self.before is not None:
            convert(self.before[start:], rows[: reach - start])
        return rows

    def sums(self, inputs: Array) -> Array:
        """The convolution of `inputs` with its bias, before silu, float32 [tokens b, c]."""
        out = np.empty((len(inputs) - len(self.taps) + 1, *inputs.shape[1:]), np.float32)
        rows = _sums(inputs, self.of_rows, out).reshape(-1, inputs.shape[-1])
        if self.bias is not None:
            rows += self.bias
        return rows

    def forward(self) -> Array:
        """The result after silu, [s, b, c] in x's type."""
        out = np.empty(self.x.shape, self.x.dtype)

        def block(start: int, stop: int) -> None:
            sums, rows = self.sums(self.inputs(start, stop)), out[start:stop].reshape(-1, out.shape[-1])
            result = float32_for(rows)
            ENGINE.activation("silu", sums, None, result)
            fill(rows, result)

        run(block, self.blocks)
        return out

    def gradients(self, dout: Array) -> tuple[Array, Array, Array]:
        """(gradient of x, of the taps [w, c], of the bias [c]: zeros without one) from dout [s, b, c]."""
        count, dtaps = len(self.taps), np.zeros((len(self.blocks), *self.taps.shape), np.float32)
        dbias = np.zeros((len(self.blocks), self.taps.shape[1]), np.float32)
        dsums = np.empty((len(self.x) + count - 1, *self.x.shape[1:]), np.float32)
        dsums[len(self.x) :] = 0

        def through_silu(number: int, start: int, stop: int) -> None:
            inputs, gradient = self.inputs(start, stop), dsums[start:stop]
            sums = self.sums(inputs)
            rows, upstream = (rows.reshape(sums.shape) for rows in (gradient, widened(dout[start:stop])))
            ENGINE.activation_gradient("silu", sums, None, upstream, rows, None)
            if self.bias is not None:
                dbias[number] = rows.sum(0)
            np.einsum("wsbc,sbc->wc", _windows(inputs, count), gradient, out=dtaps[number])

        dx, backwards = np.empty(self.x.shape, self.x.dtype), self.of_rows[::-1]

        def to_inputs(start: int, stop: int) -> None:
            rows = dx[start:stop]
            fill(rows, _sums(dsums[start : stop + count - 1], backwards, float32_for(rows)))

        run(through_silu, [(number, *span) for number, span in enumerate(self.blocks)])
        run(to_inputs, self.blocks)
        return dx, dtaps.sum(0), dbias.sum(0)


class _ShortConvolution(Function):
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.parameters = weight, bias
        ctx.save_for_backward(x)
        return from_numpy(_Convolution(array_of(x), None, weight, bias).forward())

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (weight, bias) = ctx.saved_tensors, ctx.parameters
        dx, dtaps, dbias = _Convolution(array_of(x), None, weight, bias).gradients(array_of(dy))
        dweight = add_summed_gradient(weight, np.ascontiguousarray(dtaps.T)[:, None])
        return from_numpy(dx), dweight, None if bias is None else add_summed_gradient(bias, dbias)


def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _ShortConvolution.apply(x, weight, bias)


def continued_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, lengths: Array | None
) -> tuple[Tensor, Tensor]:
    array, earlier = array_of(x), array_of(before)
    out = _Convolution(array, earlier, weight, bias).forward()
    rows, reach = np.concatenate((earlier, array)), len(earlier)
    ends = np.full(array.shape[1], len(array)) if lengths is None else lengths
    last = rows[ends + np.arange(reach)[:, None], np.arange(array.shape[1])]
    return from_numpy(out), from_numpy(last)
