"""Figures that follow from the configuration alone: floating-point operations of a training, bytes that ranks send,
bytes of memory."""

from parallel_core.costs.activations import kept_bytes, peak_kept_bytes
from parallel_core.costs.memory import (
    BufferBytes,
    MemoryBytes,
    buffer_bytes,
    memory,
    on_host,
    reduction_bytes,
    update_bytes,
)
from parallel_core.costs.stage import StagePlan, training_flops
from parallel_core.costs.traffic import step_traffic
