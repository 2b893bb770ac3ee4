"""Tiles of attention's scores by oneDNN: a product with everything that follows it, entry by entry, fused into it.

A tile's rows are keys and its columns queries: numbers of a query are then broadcast along rows, which oneDNN fuses
for any number of heads at once (numbers of a row only for one head: for several it has only its slow reference
code, which `primitives` refuses). For the same reason tiles that it writes lie one after another, without gaps.
"""

from parallel_core.numerics.dtypes import Array
from pynative.onednn import primitives
from pynative.onednn.layouts import layout_of
from pynative.onednn.library import Algorithm, Primitive
from pynative.onednn.primitives import Binary, Eltwise, PostOp

EXPONENTIAL = Eltwise(Algorithm.EXP)
TANH = Eltwise(Algorithm.TANH)


class _Chain:
    """Operations that follow a product entry by entry, in order, and their array arguments."""

    def __init__(self) -> None:
        self.post_ops: list[PostOp] = []
        self.arrays: list[Array] = []

    def scale(self, factor: float) -> None:
        self.post_ops.append(Eltwise(Algorithm.LINEAR, factor))

    def combine(self, algorithm: Algorithm, array: Array | None) -> None:
        """Append the operation `algorithm` between each entry and that of an array, which is broadcast; nothing if the
        array is None."""
        if array is not None:
            self.post_ops.append(Binary(algorithm, layout_of(array)))
            self.arrays.append(array)


def _product(rows: Array, columns: Array, out: Array, chain: _Chain) -> bool:
    """Fill out with rows columns^T after the operations of the chain; False where oneDNN cannot."""
    primitive: Primitive | None = primitives.product(
        layout_of(rows), layout_of(columns.transpose(0, 2, 1)), layout_of(out), None, tuple(chain.post_ops)
    )
    if primitive is not None:
        primitive(rows, columns, out, *chain.arrays)
    return primitive is not None


def score_exponentials(
    keys: Array, queries: Array, out: Array, scale: float,
    limits: Array | None = None, maximum: Array | None = None, inverse_sum: Array | None = None,
    cap: float | None = None, bias: Array | None = None,
) -> bool:  # fmt: skip
    """Fill out as `Engine.score_exponentials` does and return True; False where oneDNN cannot."""
    chain = _Chain()
    chain.scale(scale / (cap or 1.0))
    if cap is not None:
        chain.post_ops.append(TANH)
        chain.scale(cap)
    chain.combine(Algorithm.ADD, bias)
    chain.combine(Algorithm.MINIMUM, limits)
    chain.combine(Algorithm.SUBTRACT, maximum)
    chain.post_ops.append(EXPONENTIAL)
    chain.combine(Algorithm.MULTIPLY, inverse_sum)
    return _product(keys, queries, out, chain)


def soft_cap_slope(keys: Array, queries: Array, out: Array, scale: float) -> bool:
    """Fill out as `Engine.soft_cap_slope` does and return True; False where oneDNN cannot."""
    chain = _Chain()
    chain.scale(scale)
    chain.post_ops += [TANH, Eltwise(Algorithm.SQUARE), Eltwise(Algorithm.LINEAR, -1.0, 1.0)]
    return _product(keys, queries, out, chain)


def score_gradient(
    values: Array, dout: Array, probabilities: Array, delta: Array, out: Array,
    kept: Array | None = None, kept_scale: float = 1.0, slope: Array | None = None,
) -> bool:  # fmt: skip
    """Fill out as `Engine.score_gradient` does and return True; False where oneDNN cannot."""
    chain = _Chain()
    if kept is not None:
        chain.scale(kept_scale)
    chain.combine(Algorithm.MULTIPLY, kept)
    chain.combine(Algorithm.SUBTRACT, delta)
    chain.combine(Algorithm.MULTIPLY, probabilities)
    chain.combine(Algorithm.MULTIPLY, slope)
    return _product(values, dout, out, chain)
