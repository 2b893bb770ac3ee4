"""Bytes of memory that one rank of a stage needs to train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallel_core.costs.activations import peak_kept_bytes
from parallel_core.costs.parameters import stage_owned
from parallel_core.dtypes import DTYPES
from parallel_core.optimizer import plan_states

if TYPE_CHECKING:
    from parallel_core.config import AllConfig


@dataclass(frozen=True)
class MemoryBytes:
    """Of one rank, from the first step on; padding of buffers included."""

    parameters: int
    gradients: int
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
    buffers = stage_owned(config, stage)
    item_sizes = [(DTYPES[plan.parameter_type].bytes, DTYPES[plan.gradient_type].bytes) for plan, _ in buffers]
    states = [
        state.bytes for plan, owned in buffers for state in plan_states(plan, owned, config.optimizer_config).values()
    ]
    activations = peak_kept_bytes(config, stage)
    return MemoryBytes(
        sum(plan.size * size for (plan, _), (size, _) in zip(buffers, item_sizes, strict=True)),
        sum(plan.size * size for (plan, _), (_, size) in zip(buffers, item_sizes, strict=True)),
        sum(states),
        activations,
        activations - peak_kept_bytes(config, stage, on_device=True),
    )
