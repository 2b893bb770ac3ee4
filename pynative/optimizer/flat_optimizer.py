"""What optimizers over flat buffers share: float32 state, float32 values of 16-bit parameters, and the sweep."""

from collections.abc import Iterator
from typing import NamedTuple

from mindspore import Parameter, Tensor

from parallel_core.buffers import Stretch, overlaps
from parallel_core.config import OptimizerConfig
from parallel_core.loss_scale import LossScaler
from pynative import in_place
from pynative.distributed.flat_memory import FlatMemory
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer, ParamAndGradBuffers
from pynative.parameter import set_main_param

MAIN_PARAM = "main_param"
"""The state of a 16-bit parameter that is its value in float32 (Micikevicius et al., "Mixed Precision Training")."""


class Sweep(NamedTuple):
    """The memory of what this rank owns of a segment."""

    weight_decay_multiplier: float
    vectors: list[Tensor]
    """What is updated in float32 and from which gradients: parameters, gradients, each moment."""
    model_param: Tensor | None
    """The parameters that the model computes with, where they are of 16 bits and so not the ones that are updated."""


class FlatOptimizer:
    """What Adam and SGD share: float32 state of what this rank owns of the buffers, and the sweep over it.

    Of 16-bit parameters the float32 values are state too: the model's are those, rounded, after every step. The loss
    scaler is state as well; a training step asks and tells it.
    """

    moment_names: tuple[str, ...] = ()

    def __init__(
        self, config: OptimizerConfig, buffers: ParamAndGradBuffers, grad_scaler: LossScaler | None = None
    ) -> None:
        self.config, self.buffers, self.grad_scaler = config, buffers, grad_scaler
        self._states = [self._state_of(buffer) for buffer in buffers]
        self._sweeps = [
            sweep
            for buffer, states in zip(buffers, self._states, strict=True)
            for sweep in self._sweeps_of(buffer, states)
        ]
        for buffer, states in zip(buffers, self._states, strict=True):
            self._give_main_params(buffer, states.get(MAIN_PARAM))
        self.reload_model_params()
        self.steps = 0
        self._has_stepped = False

    @property
    def state_names(self) -> tuple[str, ...]:
        """Of every state that a parameter may have."""
        return MAIN_PARAM, *self.moment_names

    def _state_of(self, buffer: ParamAndGradBuffer) -> dict[str, FlatMemory]:
        names = self.moment_names if buffer.plan.parameter_type == "float32" else self.state_names
        return {name: FlatMemory(buffer.owned) for name in names}

    def _sweeps_of(self, buffer: ParamAndGradBuffer, states: dict[str, FlatMemory]) -> Iterator[Sweep]:
        main_param = states.get(MAIN_PARAM)
        memories = [main_param or buffer.parameters, buffer.gradients, *(states[name] for name in self.moment_names)]
        for segment in buffer.plan.segments:
            for run in overlaps([segment.span], buffer.owned):
                vectors = [memory.span(*run) for memory in memories]
                yield Sweep(segment.weight_decay_multiplier, vectors, main_param and buffer.parameters.span(*run))

    @staticmethod
    def _give_main_params(buffer: ParamAndGradBuffer, main_param: FlatMemory | None) -> None:
        """Let parameters know their float32 values: in their shape, or of a part of one the vector."""
        owned = {entry.index: run for entry, run in buffer.plan.entries_in(buffer.owned)}
        for entry, parameter in buffer.entries:
            run = owned.get(entry.index)
            if main_param is None or run is None:
                set_main_param(parameter, None)
            elif Stretch.of(entry, run).is_whole:
                set_main_param(parameter, main_param.view(entry.start, entry.place.shape), parameter)
            else:
                set_main_param(parameter, main_param.span(*run), buffer.parameters.span(*run))

    def reload_model_params(self) -> None:
        """Take the float32 values of 16-bit parameters from the model's, which were overwritten."""
        for meta in (parameter.meta for _, parameter in self.buffers.entries):
            if meta.main_param is not None:
                in_place.assign(meta.main_param, meta.rounded_from_main)

    def _take_over_assigned_params(self) -> None:
        """Scripts assign values between the construction and the first step; others keep their exact float32 values."""
        for meta in (parameter.meta for _, parameter in self.buffers.entries):
            if meta.main_param is not None and not _is_rounded_from(meta.rounded_from_main, meta.main_param):
                in_place.assign(meta.main_param, meta.rounded_from_main)

    def step(self, learning_rate: float, weight_decay: float, grad_scale: float) -> None:
        """Update every weight that this rank owns from its gradient times `grad_scale`, then gather the others."""
        if not self._has_stepped:
            self._take_over_assigned_params()
            self._has_stepped = True
        self.steps += 1
        for sweep in self._sweeps:
            self._update(sweep, learning_rate, weight_decay * sweep.weight_decay_multiplier, grad_scale)
        self.buffers.gather_parameters()

    def _update(self, sweep: Sweep, learning_rate: float, weight_decay: float, grad_scale: float) -> None:
        """Update a segment."""
        raise NotImplementedError

    def states_of_parameters(self) -> list[tuple[Parameter, Stretch, dict[str, Tensor]]]:
        """Each parameter of which this rank owns something, with what that is and vectors of its state by name."""
        found = []
        for buffer, states in zip(self.buffers, self._states, strict=True):
            parameters = {entry.index: parameter for entry, parameter in buffer.entries}
            for entry, run in buffer.plan.entries_in(buffer.owned):
                vectors = {name: memory.span(*run) for name, memory in states.items()}
                found.append((parameters[entry.index], Stretch.of(entry, run), vectors))
        return found


def _is_rounded_from(rounded: Tensor, exact: Tensor) -> bool:
    """Whether a 16-bit tensor holds the bits of a float32 one's values, rounded."""
    return rounded.asnumpy().tobytes() == exact.astype(rounded.dtype).asnumpy().tobytes()
