# mypy: disable-error-code=empty-body
"""Contract of the operators of linear attention: a recurrence, the short convolution before it, and gates.

m heads of queries and keys, d their size; n heads of values, a multiple of m, e their size; c channels, w width of a
convolution. Value heads that share a key head are neighbours. See `parallel_core.attention.recurrence`.
"""

from mindspore import Tensor

from parallel_core.attention.recurrence import RecurrenceForm
from parallel_core.numerics.dtypes import Array


def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """silu of the causal convolution of each channel of x [s, b, c] by itself, zeros before the first token: weight
    [c, 1, w], whose last entry is the token's own, bias [c] (None: without)."""


def recurrent_gates(x: Tensor, rate: Tensor | None, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """x, rate [s, b, n], a_log, dt_bias [n] -> (log of the decay, rate), float32: with step = softplus(x + dt_bias),
    -exp(a_log) step, and sigmoid(rate), or with rate None the step itself."""


def linear_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm
) -> Tensor:
    """q, k [s, b, m, d], v [s, b, n, e], log_decay and rate float32 [s, b, n] (rate None: 1) -> [s, b, n, e]:
    form.scale S^T q with the state S [d, e], token after token from S = 0: S <- exp(log_decay) S, then S <- S +
    k (rate (v - S^T k))^T, without S^T k unless form.delta. If form.unit, q and k are first divided by
    sqrt(sum of squares + 1e-6). Value head i uses the queries and keys of head i // (n/m)."""


def gate(x: Tensor, z: Tensor, activation: str) -> Tensor:
    """x times the activation ("silu", "sigmoid") of z, which has as many elements; the shape is x's."""


def continued_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, lengths: Array | None
) -> tuple[Tensor, Tensor]:
    """(`short_convolution` of x [s, b, c] behind earlier tokens `before` [w - 1, b, c] instead of zeros; the last w - 1
    tokens of each text, earlier ones included, [w - 1, b, c]).

    lengths: int32 [b], how many of the s tokens each text has, before padding; None: all. Not recorded.
    """


def continued_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm, state: Tensor,
    lengths: Array | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(`linear_recurrence` from `state` float32 [b, n, d, e] on; the state behind the last token of each text).

    lengths: int32 [b], how many of the s tokens each text has, before padding; None: all. Not recorded.
    """


def add_scaled_heads(y: Tensor, x: Tensor, factors: Tensor) -> Tensor:
    """y + factors x by heads: y, x [s, b, n, e], factors [n]."""


def grouped_rms_norm(x: Tensor, weight: Tensor, groups: int, epsilon: float) -> Tensor:
    """`rms_norm` of x [..., c], weight [c], with the last axis cut into `groups` equal parts that have a mean each."""
