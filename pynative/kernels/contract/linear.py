# mypy: disable-error-code=empty-body
"""Contract of the operators of linear layers, and of one tensor's elements."""

import mindspore
from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from parallel_core.numerics.float8 import Rounding


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., i], weight [o, i], bias [o] or None -> x weight^T + bias [..., o]. Not recorded on the tape."""


def linear_input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    """dy [..., o], weight [o, i] -> dy weight [..., i]. Not recorded on the tape."""


def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """dy [..., o], x [..., i] -> dy^T x [o, i], summed over the leading axes, written into `out` when given or, with
    `accumulate`, added to it. Not recorded on the tape."""


def bias_gradient(dy: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """dy [..., o] -> its sum over the leading axes [o], written into `out` when given or, with `accumulate`, added to
    it. Not recorded on the tape."""


def quantised(x: Tensor, rounding: Rounding, scale: float | None = None) -> Tensor:
    """x [..., c] -> its values scaled, rounded to the 8-bit type of `rounding` and divided by the scale, float32
    [..., c]. The rounding's blocks, which have a scale each, are cut from x as rows [r, c], all leading axes counted as
    one. scale: the scale of all of x, read for a rounding without blocks; None: it follows from x's values. Not
    recorded on the tape."""


def largest_magnitude(x: Tensor) -> float:
    """The largest |x|; 0 for a tensor without elements. Not recorded on the tape."""


def cast(x: Tensor, dtype: mindspore.Type) -> Tensor:
    """x in another type: rounded to nearest even for a floating-point type, towards zero for int32; x itself where it
    has the type already."""


def mxfp4(weight: Tensor, axis: int) -> Tensor:
    """weight [o, i] rounded to MXFP4 (`parallel_core.numerics.block_formats`), in its own type: 32 neighbours along
    `axis` (0 or 1) are 4-bit numbers times one power of two. Not recorded on the tape."""


def scale(x: Tensor, factor: float) -> Tensor:
    """x * factor, computed in float32 and rounded to x's type."""


def scale_features(x: Tensor, factors: Array) -> Tensor:
    """x [..., c] * factors, float32 [c], rounded as by `scale`."""


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap), in x's type (Gemma 2, 2024)."""
