"""Bytes of memory that one rank of a stage needs to train."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallel_core.buffers import SlotPlan, Span
from parallel_core.costs.activations import peak_kept_bytes
from parallel_core.costs.parameters import stage_residences
from parallel_core.dtypes import DTYPES
from parallel_core.optimizer import plan_states

if TYPE_CHECKING:
    from parallel_core.config import AllConfig


@dataclass(frozen=True)
class MemoryBytes:
    """Of one rank, from the first step on; padding of buffers included."""

    parameters: int
    gradients: int
    """With ZeRO stages 2 and 3 what a rank keeps, and the slots in which layers have all of theirs."""
    optimizer_states: int
    """The float32 values of 16-bit parameters among them."""
    activations: int
    """The most that is kept at once for backward passes (`peak_kept_bytes`), wherever it lies."""
    offloaded_activations: int
    """Part of it that lies in host memory where the device has memory of its own (--swap-attention ...)."""

    @property
    def total(self) -> int:
        """On a device with memory of its own; what operators need while they compute, and messages, come on top."""
        on_device = self.activations - self.offloaded_activations
        return self.parameters + self.gradients + self.optimizer_states + on_device


def memory(config: AllConfig, stage: int) -> MemoryBytes:
    """What each rank of a pipeline stage allocates."""
    parameters = gradients = states = 0
    for plan, kept in stage_residences(config, stage):
        parameters += DTYPES[plan.parameter_type].bytes * _elements(kept.parameters, kept.parameter_slots)
        gradients += DTYPES[plan.gradient_type].bytes * _elements(kept.gradients, kept.gradient_slots)
        states += sum(state.bytes for state in plan_states(plan, kept.owned, config.optimizer_config).values())
    activations = peak_kept_bytes(config, stage)
    on_host = activations - peak_kept_bytes(config, stage, on_device=True)
    return MemoryBytes(parameters, gradients, states, activations, on_host)


def _elements(kept: Iterable[Span], slots: SlotPlan) -> int:
    """What is kept, and the slots of what is not."""
    return sum(span.size for span in kept) + slots.size
