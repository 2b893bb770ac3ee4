"""An optimizer over flat buffers: its states, float32 copies of 16-bit parameters, and the update of what a rank
owns."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.buffers.layout import Segment, Span, offloaded, overlaps
from parallel_core.buffers.stretch import Stretch
from parallel_core.config import OptimizerConfig
from parallel_core.config.optimizer import OffloadConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.numerics.loss_scale import LossScaler
from parallel_core.numerics.lr_schedule import Rates
from parallel_core.optimizer import MAIN_PARAM, Treatment, moment_names, plan_states, treatment
from pynative import kernels
from pynative.distributed.flat_memory import FlatMemory, SomeMemory, SplitMemory
from pynative.distributed.overlap import OverlappedGathers
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer, ParamAndGradBuffers
from pynative.memory import in_place
from pynative.optimizer.muon import MuonMatrix
from pynative.optimizer.offload import allocate_states, where_states_are
from pynative.optimizer.sweep import Step, Sweep
from pynative.optimizer.updates import UPDATES, WHOLE_UPDATES
from pynative.parameter import as_type, set_main_param

States = Mapping[str, SomeMemory]
"""The memory of each state of a buffer, by the state's name."""


class FlatOptimizer:
    """The optimizer's states of what this rank owns of the buffers, and its update: an elementwise rule updates each
    run of a buffer whose parameters are treated alike at once (a `Sweep`), Muon each matrix as a whole (`MuonMatrix`).

    The float32 copies of 16-bit parameters are state too: the model's values are these, rounded, after every step.
    grad_scaler: kept for the training step, which uses it. offload: the share of the states that is offloaded to host
    memory or to files; None: nothing is offloaded.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        buffers: ParamAndGradBuffers,
        grad_scaler: LossScaler | None = None,
        offload: OffloadConfig | None = None,
    ) -> None:
        self.config, self.buffers, self.grad_scaler = config, buffers, grad_scaler
        self._allocate = None if offload is None else allocate_states(offload)
        self._fraction = 0.0 if offload is None or self._allocate is None else offload.optimizer_offload_fraction
        self._states = [self._state_of(buffer) for buffer in buffers]
        self._sweeps: list[Sweep] = []
        self._offloaded_sweeps: list[Sweep] = []
        """The sweeps whose states are in host memory or in files."""
        self._matrices: list[MuonMatrix] = []
        for buffer, states in zip(buffers, self._states, strict=True):
            self._plan_updates(buffer, states)
            self._give_main_params(buffer, states.get(MAIN_PARAM))
        self._gradients = [buffer.gradients.span(*run) for buffer in buffers for run in buffer.owned]
        self.reload_model_params()
        self.steps = 0
        self._has_stepped = False
        self._gathers = OverlappedGathers(buffers.buckets) if config.overlap_param_gather else None

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of all states that a parameter may have, on any rank, `main_param` first."""
        return MAIN_PARAM, *moment_names(self.config)

    @property
    def bytes(self) -> int:
        """Bytes allocated for states on this rank, wherever they lie."""
        return sum(memory.bytes for states in self._states for memory in states.values())

    def _state_of(self, buffer: ParamAndGradBuffer) -> States:
        planned = plan_states(buffer.plan, buffer.owned, self.config)
        if self._allocate is None:
            return {name: FlatMemory(state.spans, state.dtype) for name, state in planned.items()}
        elsewhere, rest = self._places(buffer)
        return {
            name: SplitMemory(
                overlaps(state.spans, elsewhere), overlaps(state.spans, rest), state.dtype, self._allocate
            )
            for name, state in planned.items()
        }

    def _places(self, buffer: ParamAndGradBuffer) -> tuple[Sequence[Span], Sequence[Span]]:
        """(The spans of a buffer whose states are offloaded, the other owned spans)."""
        return offloaded(buffer.plan, buffer.owned, self._fraction) if self._allocate else ((), buffer.owned)

    def _plan_updates(self, buffer: ParamAndGradBuffer, states: States) -> None:
        """Add a buffer's updates: a sweep for each owned run of a segment, or a MuonMatrix for each parameter that is
        updated as a whole."""
        elsewhere, rest = self._places(buffer)
        for segment in buffer.plan.segments(partial(treatment, config=self.config)):
            if segment.treatment.rule in UPDATES:
                for place, sweeps in ((rest, self._sweeps), (elsewhere, self._offloaded_sweeps)):
                    runs = overlaps([segment.span], place)
                    sweeps += [_sweep_of(run, segment.treatment, buffer, states) for run in runs]
            else:
                self._matrices += self._matrices_of(segment, buffer, states)

    def _matrices_of(
        self, segment: Segment[Treatment], buffer: ParamAndGradBuffer, states: States
    ) -> Iterator[MuonMatrix]:
        matrices = [entry for entry in buffer.plan.entries if overlaps([entry.span], [segment.span])]
        sweeps = {
            entry.start: (run, _sweep_of(run, segment.treatment, buffer, states))
            for entry, run in buffer.plan.entries_in(overlaps([segment.span], buffer.owned))
        }
        planned = WHOLE_UPDATES[segment.treatment.rule]
        return planned(buffer.plan, matrices, sweeps, self.config, self.buffers.is_sharded)

    @staticmethod
    def _give_main_params(buffer: ParamAndGradBuffer, main_param: SomeMemory | None) -> None:
        """Set `main_param` of a buffer's parameters: the float32 copy in the parameter's shape if the rank owns all of
        it, else the owned part as a vector; None if there is no copy or nothing is owned."""
        owned = {entry.index: run for entry, run in buffer.plan.entries_in(buffer.owned)}
        for entry, parameter in buffer.entries:
            run = owned.get(entry.index)
            if main_param is None or run is None:
                set_main_param(parameter, None)
            elif Stretch.of(entry, run).is_whole:
                place = entry.start, entry.place.shape
                set_main_param(parameter, main_param.view(*place), buffer.parameters.view(*place))
            else:
                set_main_param(parameter, main_param.span(*run), buffer.parameters.span(*run))

    def reload_model_params(self) -> None:
        """Overwrite the float32 copies of 16-bit parameters with the model's values."""
        for meta in (parameter.meta for _, parameter in self.buffers.entries):
            if meta.main_param is not None:
                in_place.assign(meta.main_param, meta.rounded_from_main)

    def _take_over_assigned_params(self) -> None:
        """Overwrite the float32 copies of parameters that a script assigned between construction and the first step;
        the others keep their exact values."""
        for meta in (parameter.meta for _, parameter in self.buffers.entries):
            if meta.main_param is not None and not _is_rounded_from(meta.rounded_from_main, meta.main_param):
                in_place.assign(meta.main_param, meta.rounded_from_main)

    def step(
        self,
        learning_rate: float,
        weight_decay: float,
        grad_scale: float,
        decoupled_lr: float | None = None,
        row_factors: Sequence[tuple[Parameter, Array]] = (),
    ) -> None:
        """Update every weight that this rank owns from its gradient times `grad_scale` (and clipped by value, if the
        configuration says so), then gather the weights that others own. All ranks call this.

        decoupled_lr: with --decoupled-lr, the learning rate of embedding and output layer; None: they have that of all.
        row_factors: parameters whose rows [r, ...] are multiplied by factors [r] after their update. With
        --overlap-param-gather the gathers that cells of the model wait for are only started; weights that ZeRO stage 3
        keeps in slots are not gathered here.
        """
        if not self._has_stepped:
            self._take_over_assigned_params()
            self._has_stepped = True
        self.steps += 1
        rates = Rates(learning_rate, weight_decay, learning_rate if decoupled_lr is None else decoupled_lr)
        self._update(Step(self.steps, rates, grad_scale))
        self._scale_rows({id(parameter): factors for parameter, factors in row_factors})
        self.buffers.start_param_sync()
        if self._gathers is None:
            self.buffers.finish_param_sync()
        else:
            self._gathers.finish_others()

    def _update(self, step: Step) -> None:
        if self.config.clip_grad_value is not None:
            for gradients in self._gradients:
                kernels.clamp_(gradients, self.config.clip_grad_value / step.grad_scale)
        for sweeps, is_on_host in ((self._sweeps, False), (self._offloaded_sweeps, True)):
            for sweep in sweeps:
                with where_states_are(sweep, is_on_host) as here:
                    UPDATES[sweep.treatment.rule](here, self.config, step)
        for matrix in self._matrices:
            matrix.update(step)

    def _scale_rows(self, factors: Mapping[int, Array]) -> None:
        """Multiply the rows of what this rank owns of parameters by factors, by the parameter's id; 16-bit values are
        rounded again from their float32 copy."""
        for buffer, states in zip(self.buffers, self._states, strict=True) if factors else ():
            parameters = {entry.index: parameter for entry, parameter in buffer.entries}
            for entry, run in buffer.plan.entries_in(buffer.owned):
                rows = factors.get(id(parameters[entry.index]))
                if rows is None:
                    continue
                stretch, values = Stretch.of(entry, run), buffer.parameters.span(*run)
                exact = _vectors(states, run).get(MAIN_PARAM, values)
                own = np.repeat(rows, entry.place.size // len(rows))[stretch.start : stretch.stop]
                in_place.assign(exact, Tensor.from_numpy(exact.asnumpy() * own.astype(np.float32)))
                if exact is not values:
                    in_place.assign(values, exact)

    def states_of_parameters(self) -> list[tuple[Parameter, Stretch, dict[str, Tensor]]]:
        """(Parameter, the stretch of it that this rank owns, its states as vectors by name) of each parameter of which
        this rank owns something."""
        found = []
        for buffer, states in zip(self.buffers, self._states, strict=True):
            parameters = {entry.index: parameter for entry, parameter in buffer.entries}
            for entry, run in buffer.plan.entries_in(buffer.owned):
                found.append((parameters[entry.index], Stretch.of(entry, run), _vectors(states, run)))
        return found


def _vectors(states: States, run: Span) -> dict[str, Tensor]:
    """The views of a run, by state, in each memory that holds it."""
    return {name: memory.span(*run) for name, memory in states.items() if memory.holds(run)}


def _sweep_of(run: Span, treated: Treatment, buffer: ParamAndGradBuffer, states: States) -> Sweep:
    moments = _vectors(states, run)
    parameters = buffer.parameters.span(*run)
    main_param = moments.pop(MAIN_PARAM, None)
    if main_param is None:
        return Sweep(treated, parameters, buffer.gradients.span(*run), moments, None)
    return Sweep(treated, main_param, buffer.gradients.span(*run), moments, parameters)


def _is_rounded_from(rounded: Tensor, exact: Tensor) -> bool:
    """Whether a 16-bit tensor holds exactly the float32 tensor's values, rounded."""
    return rounded.asnumpy().tobytes() == as_type(exact.asnumpy(), rounded.dtype).asnumpy().tobytes()
