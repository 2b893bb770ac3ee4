"""Bytes of memory that one rank of a stage needs to train."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parallel_core.buffers.layout import BufferPlan, Span, offloaded, overlaps
from parallel_core.buffers.slots import Residence, SlotPlan
from parallel_core.config import AllConfig
from parallel_core.costs.activations import peak_kept_bytes
from parallel_core.costs.stage import StagePlan
from parallel_core.numerics.averaging import Averaging
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.optimizer import PlannedState, plan_states


@dataclass(frozen=True)
class BufferBytes:
    """Bytes of one rank's parameters, gradients and optimizer states, from the first step on; padding of buffers
    included. With ZeRO those of parameters and gradients that a rank keeps, and of the memory in which a layer's are
    whole. `offloaded_states` and `offloaded_parameters` are parts of the states and parameters, in host memory or
    files."""

    parameters: int
    """Bytes of the parameters, frozen ones included; with ZeRO stage 3 those that a rank keeps, and the slots in which
    a layer's are whole."""
    gradients: int
    """Bytes of gradients; with ZeRO stages 2 and 3 those that a rank keeps, and the slots in which a layer's are
    whole."""
    optimizer_states: int
    """Bytes of the optimizer's states, with the float32 values of 16-bit parameters, wherever they lie."""
    offloaded_states: int
    """The part of `optimizer_states` that lies in host memory or in a file (--cpu-offload-optimizer, --nvme-path)."""
    offloaded_parameters: int
    """The part of `parameters` that lies in host memory where the device has memory of its own
    (--cpu-offload-params)."""


@dataclass(frozen=True)
class MemoryBytes(BufferBytes):
    """Bytes of one rank: its buffers, and the peak of the activations that are kept for backward passes, wherever they
    lie. `offloaded_activations` is the difference that activations in host memory make to that peak (`on_host`)."""

    activations: int
    """The most bytes that are kept at once for backward passes (`peak_kept_bytes`), wherever they lie."""
    offloaded_activations: int
    """Bytes by which activations in host memory (--swap-attention ...) lower that peak on a device with memory of its
    own (`on_host`)."""

    @property
    def total(self) -> int:
        """Bytes on a device with memory of its own, without states, parameters and activations that are offloaded.
        Temporary memory of operators and messages comes on top."""
        elsewhere = self.offloaded_states + self.offloaded_parameters + self.offloaded_activations
        return self.parameters + self.gradients + self.optimizer_states + self.activations - elsewhere


def memory(plan: StagePlan) -> MemoryBytes:
    """The bytes of parameters, gradients, optimizer states and activations of the planned rank; temporary memory is not
    counted."""
    activations = peak_kept_bytes(plan)
    return MemoryBytes(**vars(buffer_bytes(plan)), activations=activations, offloaded_activations=on_host(plan))


def on_host(plan: StagePlan) -> int:
    """Bytes by which activations in host memory lower a device's `peak_kept_bytes`; 0 if nothing is offloaded."""
    if not any(chunk.offloaded_bytes(plan.micro_batch) for chunk in plan.chunks):
        return 0
    return peak_kept_bytes(plan) - peak_kept_bytes(plan, on_device=True)


def buffer_bytes(plan: StagePlan) -> BufferBytes:
    """Bytes of the parameters, gradients and optimizer states of the planned rank."""
    gradients = states = states_elsewhere = parameters_elsewhere = 0
    config, parameters = plan.config, plan.frozen_bytes
    for buffer, kept in plan.residences:
        parameters += DTYPES[buffer.parameter_type].bytes * _elements(kept.parameters, kept.parameter_slots)
        gradients += DTYPES[buffer.gradient_type].bytes * _elements(kept.gradients, kept.gradient_slots)
        planned = plan_states(buffer, kept.owned, config.optimizer_config).values()
        states += sum(state.bytes for state in planned)
        states_elsewhere += _bytes_elsewhere(planned, _offloaded(config, buffer, kept))
        if config.training_config.gradient.cpu_offload_params:
            cut = overlaps(kept.parameters, [*kept.parameter_slots.cells])
            parameters_elsewhere += DTYPES[buffer.parameter_type].bytes * sum(span.size for span in cut)
    return BufferBytes(parameters, gradients, states, states_elsewhere, parameters_elsewhere)


def update_bytes(plan: StagePlan) -> int:
    """Bytes that the planned rank reads and writes between its last backward and the next step, messages apart: it
    sweeps the gradients that it reduces then (`_sweeps_before_sum`); of the part that it updates it takes the
    gradients' norm, reads gradients, writes parameters, and reads and writes the optimizer's states."""
    found, sweeps = 0, _sweeps_before_sum(plan)
    for buffer, kept in plan.residences:
        owned = sum(span.size for span in kept.owned)
        earlier = overlaps(kept.gradients, [*kept.gradient_slots.cells])
        swept = sweeps * (sum(span.size for span in kept.gradients) - sum(span.size for span in earlier))
        states = plan_states(buffer, kept.owned, plan.config.optimizer_config).values()
        found += DTYPES[buffer.gradient_type].bytes * (swept + 2 * owned) + DTYPES[buffer.parameter_type].bytes * owned
        found += 2 * sum(state.bytes for state in states)
    return found


def reduction_bytes(plan: StagePlan) -> float:
    """Bytes that the planned rank reads and writes in each micro-batch for gradients that it reduces in it (ZeRO stages
    2 and 3), messages apart, as a mean over the micro-batches: it sweeps them (`_sweeps_before_sum`), and adds its own
    part to that of the micro-batches before, which the first one overwrites."""
    found, sweeps, adds = 0.0, _sweeps_before_sum(plan), 3 - 1 / plan.config.dataset_config.micro_batch_num
    for buffer, kept in plan.residences:
        buckets = [*kept.gradient_slots.cells]
        whole, own = (sum(span.size for span in spans) for spans in (buckets, overlaps(buckets, kept.owned)))
        found += DTYPES[buffer.gradient_type].bytes * (sweeps * whole + adds * own)
    return found


def _sweeps_before_sum(plan: StagePlan) -> int:
    """How often a rank reads or writes a gradient before the sum over replicas: once to look for one that is not
    finite, unless there is a loss scaler or --no-check-for-nan-in-loss-and-grad; twice to multiply it, where a loss
    scaler has replicas averaged before they are summed."""
    training, parallel = plan.config.training_config, plan.config.parallel_config
    averaging = Averaging(
        per_token=training.calculate_per_token_loss,
        micro_batches=plan.config.dataset_config.micro_batch_num,
        replicas=parallel.data_parallel_size,
        loss_scaler=training.precision.make_loss_scaler(),
        average_in_collective=training.gradient.average_in_collective,
    )
    checks = training.check_for_nan_in_grad and averaging.loss_scaler is None
    return checks + 2 * (averaging.factor_before_sum != 1.0)


def _offloaded(config: AllConfig, plan: BufferPlan, kept: Residence) -> Sequence[Span]:
    """The spans of a buffer whose optimizer states lie in host memory or in a file."""
    offload = config.training_config.offload
    fraction = offload.optimizer_offload_fraction if offload.offloads_optimizer else 0.0
    return offloaded(plan, kept.owned, fraction)[0]


def _bytes_elsewhere(states: Iterable[PlannedState], elsewhere: Sequence[Span]) -> int:
    """Bytes of the optimizer states of the spans `elsewhere`."""
    return sum(DTYPES[state.dtype].bytes * span.size for state in states for span in overlaps(state.spans, elsewhere))


def _elements(kept: Iterable[Span], slots: SlotPlan) -> int:
    """The number of elements in the spans that are kept all the time and in all slots."""
    return sum(span.size for span in kept) + slots.size
