# mypy: disable-error-code=empty-body
"""Contract of the operators of flat buffers: in place, not recorded."""

from mindspore import Tensor


def adamw_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    step: int,
    grad_scale: float = 1.0,
    model_param: Tensor | None = None,
) -> None:
    """AdamW (Loshchilov & Hutter 2019) on flat tensors of one shape; `step` counts from 1.

    param <- param (1 - learning_rate weight_decay) - learning_rate m / (sqrt(v) + epsilon), m and v the averages of
    grad_scale * grad and of its square, divided by 1 - beta^step. All float32, but grad of any float type.

    model_param: the 16-bit copy of param that the model computes with; it becomes param, rounded to nearest even.
    """


def sgd_(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor,
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    grad_scale: float = 1.0,
    model_param: Tensor | None = None,
) -> None:
    """buffer <- momentum * buffer + grad_scale * grad + weight_decay * param; param <- param - learning_rate * buffer.

    Flat tensors of one shape; the buffer starts at zero. Types and model_param as in `adamw_`.
    """


def squared_norm(x: Tensor) -> float:
    """Sum of squares of x, which is not finite only if an element of x is not."""


def add_(x: Tensor, y: Tensor) -> None:
    """x <- x + y, of one shape; y may have another type."""


def scale_(x: Tensor, factor: float) -> None:
    """x <- x * factor."""


def fill_(x: Tensor, value: float) -> None:
    """x <- value."""
