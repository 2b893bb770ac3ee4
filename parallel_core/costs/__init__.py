"""Figures that follow from the configuration alone: operations, parameters, bytes between ranks, bytes of memory.

Each is a sum over `parallel_core.blocks`.
"""

from parallel_core.costs.activations import kept_bytes, peak_kept_bytes
from parallel_core.costs.memory import MemoryBytes, memory
from parallel_core.costs.stage import StagePlan, training_flops
from parallel_core.costs.traffic import step_traffic

__all__ = [
    "MemoryBytes",
    "StagePlan",
    "kept_bytes",
    "memory",
    "peak_kept_bytes",
    "step_traffic",
    "training_flops",
]
