"""The arguments of an update: a step's settings, and the memory of parameters that are treated alike."""

from typing import NamedTuple

from mindspore import Tensor

from parallel_core.numerics.lr_schedule import Rates
from parallel_core.optimizer import Treatment


class Step(NamedTuple):
    """The settings of one update of all parameters: its number, from 1, learning rates and weight decay, and the factor
    of the gradients."""

    number: int
    """The number of this update, from 1."""
    rates: Rates
    grad_scale: float
    """The factor that gradients are multiplied by."""

    def learning_rate_of(self, treatment: Treatment) -> float:
        """The learning rate of parameters with this treatment."""
        rate = self.rates.decoupled_lr if treatment.has_decoupled_lr else self.rates.learning_rate
        return rate * treatment.rate_factor

    def weight_decay_of(self, treatment: Treatment) -> float:
        """The weight decay of parameters with this treatment; 0 if they are not decayed."""
        return self.rates.weight_decay if treatment.is_decayed else 0.0


class Sweep(NamedTuple):
    """The vectors, of equal length, that one call of an update rule works on: of a run of a buffer that this rank owns
    and whose parameters are treated alike. param: the float32 values that are updated, the parameters' own or copies of
    16-bit ones; model_param: the 16-bit parameters, into which `param` is rounded, else None; moments: the rule's
    states by name."""

    treatment: Treatment
    param: Tensor
    """The float32 values that are updated: the parameters, or the copies of 16-bit ones."""
    grad: Tensor
    moments: dict[str, Tensor]
    """The update rule's states, by name."""
    model_param: Tensor | None
    """The 16-bit parameters, into which `param` is rounded after its update; None: `param` is the model's."""
