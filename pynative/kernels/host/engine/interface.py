"""The interface of an engine of primitives. Tape, saved tensors, dropout, threads and delivery of gradients lie above
it.

Arrays are numpy's, of float32, float16 or MindSpore's bfloat16; vectors have no gaps. An engine computes in float32
(products: accumulates in it) and rounds results to the type of the array that it fills; x + bias, from which an
activation's gradient is computed, may be rounded to x's type first. Operators share rows out among threads, and each
thread calls the engine for its own, without the GIL where that is possible. Operators whose sums must not depend on the
number of threads cut rows by shape alone and add the blocks' sums themselves.

Letters: r rows of a block, c columns, f features of an activation's input, h hidden size; j heads of attention, q of
their queries, k of their keys (of `matmul`: the axis summed over), d size of a query's and a key's head, e of a
value's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from parallel_core.numerics.dtypes import Array


class AdamwStep(NamedTuple):
    """The factors of one step of AdamW with the averages m and v, as `Engine.adamw` uses them: m = beta1 m +
    gradient_factor grad, v = beta2 v + (square_factor grad)^2, param = decay param - step_size m / (inverse_correction
    sqrt(v) + epsilon)."""

    beta1: float
    beta2: float
    epsilon: float
    gradient_factor: float
    """(1 - beta1) times the factor that the gradient still lacks."""
    square_factor: float
    """sqrt(1 - beta2) times the factor that the gradient still lacks."""
    inverse_correction: float
    """1 / sqrt(1 - beta2^step), or 1 without correction."""
    step_size: float
    """The learning rate, with correction divided by 1 - beta1^step."""
    decay: float
    """1 - learning rate times weight decay if that is decoupled, else 1."""


class Engine(Protocol):
    """Primitives of the host operators; all but `prepared_matmul` and `product_type` fill arrays that they are given
    and return nothing."""

    name: str
    """The engine's name in the log."""

    def matmul(
        self, left: Array, right: Array, out: Array, bias: Array | None = None, accumulate: bool = False
    ) -> None:
        """out [r, c] = left [r, k] right [k, c] + bias [c]; `accumulate`: that is added to what out holds.

        left and right, of one type, may be transposed views. out is of their type or float32. left, right and out may
        have leading axes, all three equally many: matrices that are multiplied pair by pair. Such an axis may be 1 in
        left or right: one matrix for all.
        """

    def prepared_matmul(self, left: Array, right: Array, out: Array) -> Callable[[], object]:
        """A function that fills out with the product left right of these float32 matrices, with the values that they
        have when it is called: again and again, in any thread, but not in two at once."""

    def add(self, x: Array, bias: Array | None, mask: Array | None, residual: Array | None, out: Array) -> None:
        """out [r, c] = (x + bias [c]) * mask + residual; what is None is left out. mask is float32.

        x, bias and residual may be of different types.
        """

    def sum_rows(self, x: Array, out: Array) -> None:
        """out float32 [c] = sum over the rows of x [r, c]."""

    def norm(
        self, x: Array, scale: Array, shift: Array | None, epsilon: float,
        out: Array, mean: Array | None, inverse: Array,
    ) -> None:  # fmt: skip
        """out [r, h] = (x - mean) / deviation * scale + shift by rows; fills mean and inverse [r] too, both float32.

        Layer norm: mean is each row's, deviation sqrt(variance + epsilon). With `mean` None, RMS norm: nothing is
        subtracted, deviation is sqrt(mean of squares + epsilon). inverse = 1 / deviation. scale, shift (None: 0):
        float32 [h]. out has the type and the strides of x.
        """

    def norm_gradient(
        self, dy: Array, x: Array, scale: Array, mean: Array | None, inverse: Array,
        dx: Array, scale_gradient: Array, shift_gradient: Array | None,
    ) -> None:  # fmt: skip
        """The gradients of x, scale and shift from dy, that of `norm`'s result: dx [r, h], scale_gradient and, unless
        None, shift_gradient, float32 [h], summed over the rows. mean (None: RMS norm) and inverse are as `norm` filled
        them; dy, x and dx have one type and the same strides."""

    def activation(self, name: str, x: Array, bias: Array | None, out: Array) -> None:
        """out = activation(x + bias), x [r, f], bias [f] or None; out is [r, f], of a gated activation [r, f/2], of x's
        type and without gaps, as x is.

        name: one of those of `kernels.bias_activation`.
        """

    def activation_gradient(
        self, name: str, x: Array, bias: Array | None, dy: Array, dx: Array, bias_gradient: Array | None
    ) -> None:
        """dx [r, f] from dy, which has the shape of the activation's result; bias_gradient float32 [f], unless None:
        the sum of dx's rows, rounded or not. name, x and bias are as `activation` got them; dy and dx are of x's type
        and without gaps."""

    def product_type(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type to which an operand of this type is best converted before it is multiplied more than once: itself,
        or float32."""

    def score_exponentials(
        self, keys: Array, queries: Array, out: Array, scale: float,
        limits: Array | None = None, maximum: Array | None = None, inverse_sum: Array | None = None,
        cap: float | None = None, bias: Array | None = None,
    ) -> None:  # fmt: skip
        """out [j, k, q] = exp(min(s + bias, limits) - maximum) * inverse_sum, s = scale keys queries^T or, with a cap,
        s = cap tanh(scale keys queries^T / cap); out has no gaps between rows.

        keys [j, k, d], queries [j, q, d] of one type; limits [1 or j, k, q], bias [j, k, q], maximum and inverse_sum
        [j, 1, q] float32. What is None is left out.
        """

    def soft_cap_slope(self, keys: Array, queries: Array, out: Array, scale: float) -> None:
        """out [j, k, q] = 1 - tanh(scale keys queries^T)^2, keys [j, k, d] and queries [j, q, d] of one type; out has
        no gaps between rows."""

    def score_gradient(
        self, values: Array, dout: Array, probabilities: Array, delta: Array, out: Array,
        kept: Array | None = None, kept_scale: float = 1.0, slope: Array | None = None,
    ) -> None:  # fmt: skip
        """out [j, k, q] = probabilities * (kept_scale values dout^T kept - delta) * slope; no gaps between out's rows.

        values [j, k, e], dout [j, q, e], kept, probabilities and slope [j, k, q] of one type, delta [j, 1, q] float32.
        What is None is left out, kept_scale together with kept.
        """

    def logit_statistics(self, x: Array, maximum: Array, total: Array) -> None:
        """maximum [r]: each row's largest entry of x [r, c]; total [r]: the rows' sums of exp(x - maximum).

        maximum and total are float32; x stays as it is.
        """

    def weighted_exponentials(self, x: Array, maximum: Array, weight: Array, out: Array) -> None:
        """out [r, c] = weight exp(x - maximum), maximum and weight float32 [r]; out may be x itself."""

    def adamw(self, param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, step: AdamwStep) -> None:
        """AdamW, all float32 [c], in place but for grad: exp_avg = beta1 exp_avg + gradient_factor grad, exp_avg_sq =
        beta2 exp_avg_sq + (square_factor grad)^2, param = decay param - step_size exp_avg / (inverse_correction
        sqrt(exp_avg_sq) + epsilon)."""
