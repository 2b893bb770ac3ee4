# mypy: disable-error-code=empty-body
"""Contract of the operators of flat buffers: not recorded, and in place if the name ends with an underscore."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mindspore import Tensor

Formula = Callable[..., tuple[Any, ...]]
"""An update rule in arithmetic that arrays of numpy and tensors share. It takes a module that has functions such as
`sign` and `sqrt` for them, float32 values of the parameter, the gradient and the moments, and gives new values of the
parameter and the moments; it changes none of its arguments."""


class AdamStep(NamedTuple):
    """The settings of one step of Adam. step: its number, from 1; grad_scale: factor of the gradient; is_decoupled:
    whether weight decay shrinks the weights (AdamW), instead of being added to the gradient (L2 regularisation);
    is_corrected: whether the averages, which begin at zero, are divided by 1 - beta^step."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    step: int
    """Number of the step, from 1."""
    grad_scale: float = 1.0
    """Factor with which the gradient is multiplied first."""
    is_decoupled: bool = True
    """Whether weight decay shrinks the weights (AdamW) instead of being added to the gradient (L2 regularisation)."""
    is_corrected: bool = True
    """Whether the averages, which begin at zero, are divided by 1 - beta^step."""

    @property
    def corrections(self) -> tuple[float, float]:
        """(divisor of the gradient's average, that of its square's average): 1 - beta^step, or 1 without correction."""
        return (1 - self.beta1**self.step, 1 - self.beta2**self.step) if self.is_corrected else (1.0, 1.0)

    @property
    def decay(self) -> float:
        """Factor of the weights before the update: 1 - learning_rate weight_decay if decoupled, else 1."""
        return 1 - self.learning_rate * self.weight_decay if self.is_decoupled else 1.0

    @property
    def penalty(self) -> float:
        """Factor with which the weights are added to the gradient: weight_decay unless decoupled, else 0."""
        return 0.0 if self.is_decoupled else self.weight_decay


def adam_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    settings: AdamStep,
    model_param: Tensor | None = None,
) -> None:
    """Adam (Kingma & Ba 2015), or AdamW (Loshchilov & Hutter 2019), on flat tensors of one shape.

    param <- decay param - learning_rate m / (sqrt(v) + epsilon), with exp_avg, the average of g = grad_scale grad +
    penalty param, and exp_avg_sq, that of g^2, both brought up to date first, and m and v these over their
    corrections. param is float32, the others of any float type; it is computed in float32, and what is kept in 16 bits
    is rounded once, to nearest even.

    model_param: the 16-bit copy of param that the model computes with; it becomes param, rounded to nearest even.
    """


def update_(
    formula: Formula,
    param: Tensor,
    grad: Tensor,
    moments: Sequence[Tensor],
    grad_scale: float = 1.0,
    model_param: Tensor | None = None,
) -> None:
    """param, *moments <- formula(functions, param, grad_scale * grad, *moments), element by element; functions: the
    module numpy or mindspore.ops.

    Flat tensors of one shape; param is float32, grad and moments are of any float type. All is computed in float32, and
    what is kept in 16 bits is rounded once, to nearest even. model_param: the 16-bit copy of param that the model
    computes with; it becomes param, rounded to nearest even.
    """


def combine_(x: Tensor, y: Tensor, x_factor: float, y_factor: float, model_param: Tensor | None = None) -> None:
    """x <- x_factor x + y_factor y, of one shape and any float types, computed in float32 and rounded once.

    With x_factor 0 the old x does not count, not even if it is not finite. model_param: the 16-bit copy of x that the
    model computes with; it becomes x, rounded to nearest even.
    """


def clamp_(x: Tensor, limit: float) -> None:
    """x <- x, no less than -limit and no more than limit, rounded to x's type; a NaN stays one."""


def squared_norm(x: Tensor) -> float:
    """Sum of squares of x, a tensor of a type of at most 32 bits; it is not finite only if an element of x is not.

    `host` sums in float64. A device may sum in float32: there zeros between the elements, such as a buffer's padding,
    may change the seventh digit.
    """


def all_finite(x: Tensor) -> Tensor:
    """Whether every element of x, of a type of at most 32 bits, is finite: a bool tensor [1]. A device may still be
    computing it on return."""


def add_(x: Tensor, y: Tensor) -> None:
    """x <- x + y, of one shape; y may have another type."""


def scale_(x: Tensor, factor: float) -> None:
    """x <- x * factor."""


def fill_(x: Tensor, value: float) -> None:
    """x <- value."""
