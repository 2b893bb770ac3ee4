"""One stage's model under a schedule: its forwards keep their graphs until the schedule asks for their backward."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, nn

from parallel_core.averaging import Averaging, MicroBatchWeight
from pynative import autograd
from pynative.parameter import as_type

LossOf = Callable[[Tensor], tuple[Tensor, MicroBatchWeight, tuple[float, float] | None]]
"""What the model gave on the last stage -> (scalar loss, its weight, (sum, count) to report if not these)."""
ForwardStep = Callable[[nn.Cell, int], tuple[Tensor, LossOf]]
"""(model, micro-batch) -> what the model gave, and how its loss is read off."""


@dataclass
class _Pending:
    """A forward whose backward is still to come."""

    input: Tensor | None
    output: Tensor
    seed: float | None


class Stage:
    """The forward and backward of one stage's model for a training or evaluation step.

    Args:
        model: the stage's cell.
        parameters: those that receive gradients.
        averaging: where backward passes start.
        is_last: whether the model gives the loss here.
        enter: called with a micro-batch's number before its forward (random streams).
    """

    def __init__(
        self,
        model: nn.Cell,
        parameters: list,
        averaging: Averaging,
        is_last: bool,
        enter: Callable[[int], None],
    ) -> None:
        self.model, self.parameters, self.averaging = model, parameters, averaging
        self.is_last, self.enter = is_last, enter

    def begin(self, forward_step: ForwardStep, train: bool = True) -> None:
        """Start a step: forget the last one's losses."""
        self.forward_step, self.train = forward_step, train
        self.tokens = 0.0
        self.reported_sum = self.reported_count = 0.0
        self._pending: dict[int, _Pending] = {}

    def forward(self, micro_batch: int, hidden_states: Tensor | None) -> Tensor:
        """hidden_states [s, b, h] of the stage before (None on the first) -> those for the stage after, or the loss."""
        self.enter(micro_batch)
        with autograd.recording(self.train):
            received = autograd.leaf(hidden_states) if self.train and hidden_states is not None else hidden_states
            self.model.set_input_tensor(received)
            output, loss_of = self.forward_step(self.model, micro_batch)
            seed = None
            if self.is_last:
                output, seed = self._note_loss(*loss_of(output))
        if self.train:
            self._pending[micro_batch] = _Pending(received, output, seed)
        return output

    def _note_loss(
        self, loss: Tensor, weight: MicroBatchWeight, reported: tuple[float, float] | None
    ) -> tuple[Tensor, float]:
        total = self.averaging.loss_sum(float(loss.asnumpy()), weight)
        self.tokens += weight.tokens
        reported_sum, reported_count = reported or (total, weight.tokens)
        self.reported_sum += reported_sum
        self.reported_count += reported_count
        return loss, self.averaging.seed(weight)

    def backward(self, micro_batch: int, gradient: Tensor | None) -> Tensor | None:
        """Gradient [s, b, h] of what forward gave (None on the last stage) -> gradient of what it received."""
        pending = self._pending.pop(micro_batch)
        if pending.seed is not None:
            gradient = as_type(np.full(pending.output.shape, pending.seed, np.float32), pending.output.dtype)
        autograd.backward([pending.output], [gradient])
        autograd.collect_gradients(self.parameters)
        return None if pending.input is None else autograd.take_gradient(pending.input)
