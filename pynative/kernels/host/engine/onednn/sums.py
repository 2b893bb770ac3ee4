"""Sums of arrays by one of oneDNN's binary primitives and what it does to its result."""

from parallel_core.numerics.dtypes import Array
from pynative.onednn import primitives
from pynative.onednn.arrays import layout_of, row_layout
from pynative.onednn.library import Algorithm, Layout
from pynative.onednn.primitives import Binary


def add(x: Array, bias: Array | None, mask: Array | None, residual: Array | None, out: Array) -> bool:
    """Fill out with (x + bias) mask + residual; False where oneDNN cannot."""
    steps = [(Algorithm.ADD, bias), (Algorithm.MULTIPLY, mask), (Algorithm.ADD, residual)]
    if residual is not None and mask is None and residual.dtype != x.dtype:
        # The result's type must be the first operand's; the others may be of any.
        x, steps = residual, [(Algorithm.ADD, x), (Algorithm.ADD, bias)]
    given = [(algorithm, array) for algorithm, array in steps if array is not None]
    if not given:
        return False
    (algorithm, second), *more = given
    post_ops = tuple(Binary(each, _layout(array)) for each, array in more)
    primitive = primitives.binary(algorithm, layout_of(x), _layout(second), layout_of(out), post_ops)
    if primitive is None:
        return False
    primitive(x, second, out, *(array for _, array in more))
    return True


def _layout(array: Array) -> Layout:
    return row_layout(array) if array.ndim == 1 else layout_of(array)
