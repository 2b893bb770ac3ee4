"""The arguments of an update: a step's settings, and the memory of parameters that are treated alike."""

from typing import NamedTuple

from mindspore import Tensor

from parallel_core.numerics.lr_schedule import Rates
from parallel_core.optimizer import Treatment


class Step(NamedTuple):
    """One update of everything."""

    number: int
    """Counts from 1."""
    rates: Rates
    grad_scale: float
    """Factor of the gradients."""

    def learning_rate_of(self, treatment: Treatment) -> float:
        """The learning rate of parameters that are treated so."""
        return self.rates.decoupled_lr if treatment.has_decoupled_lr else self.rates.learning_rate

    def weight_decay_of(self, treatment: Treatment) -> float:
        """Their weight decay."""
        return self.rates.weight_decay if treatment.is_decayed else 0.0


class Sweep(NamedTuple):
    """The memory of what this rank owns of a segment, flat."""

    treatment: Treatment
    param: Tensor
    """The values that are updated: float32."""
    grad: Tensor
    moments: dict[str, Tensor]
    """The rule's states by name."""
    model_param: Tensor | None
    """The parameters that the model computes with, where they are of 16 bits and so not the ones that are updated."""
