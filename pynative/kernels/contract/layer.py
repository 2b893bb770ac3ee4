# mypy: disable-error-code=empty-body
"""Contract of the operators of norms, activations, residual branches and dropout, and of features cut and joined."""

from mindspore import Tensor

from pynative.kernels.dropout import Key, Rows


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    """Layer norm over the last axis of x [..., h]; weight, bias [h].

    zero_centered: the weight is stored minus 1 (Megatron's --apply-layernorm-1p).
    """


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis of x [..., h]; weight [h], stored minus 1 if
    zero_centered."""


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x + bias): x [..., f] -> [..., f], or gated, x [..., 2f] = [gate | up] -> a(gate) * up [..., f].

    activation: "gelu_tanh", "gelu_erf", "gelu_quick", "silu", "relu", "squared_relu", "identity", or a gated one, whose
    a is in the table GATES of `parallel_core.numerics.activations` (swiglu, geglu_tanh and geglu_erf: Shazeer, 2020).
    The name that `adjusted` there makes gives a gated one a limit, an offset or a gain, with the formula of
    `GatedUnit`.
    """


def split_features(x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """x [..., sum of the widths] -> for each width a tensor [..., width], cut from x's last axis in this order."""


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    """(x, x), one for each of two consumers; the backward adds the two gradients."""


def join_features(x: Tensor, y: Tensor) -> Tensor:
    """x [..., m] and y [..., n] of one type beside each other, [..., m + n]."""


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    rate: float = 0.0,
    key: Key | None = None,
    rows: Rows | None = None,
) -> Tensor:
    """residual + dropout(x + bias), in the residual's type, or x's without one: x, residual [s, ..., h], bias [h]; what
    is None is left out.

    rate, key: those of `dropout`. rows: the global sequence positions that x holds, in its order, as ranges; None: all,
    from 0.
    """


def dropout(x: Tensor, rate: float, key: Key, rows: Rows | None = None) -> Tensor:
    """x [s, ..., h] * the mask of `key`, of 0 and 1 / (1 - rate) (`kernels.dropout.Dropout`, also for the rounding of
    rate); x itself at rate 0.

    rows: the global sequence positions that x holds, in its order, as ranges; None: all, from 0.
    """
