"""Figures that follow from the configuration alone: operations, parameters, bytes between ranks, bytes of memory.

Each is a sum over `parallel_core.blocks`.
"""

from parallel_core.costs.activations import kept_bytes, peak_kept_bytes
from parallel_core.costs.flops import forward_flops_per_token, training_flops
from parallel_core.costs.memory import MemoryBytes, memory
from parallel_core.costs.parameters import buffer_elements, stage_parameters
from parallel_core.costs.traffic import step_traffic

__all__ = [
    "MemoryBytes",
    "buffer_elements",
    "forward_flops_per_token",
    "kept_bytes",
    "memory",
    "peak_kept_bytes",
    "stage_parameters",
    "step_traffic",
    "training_flops",
]
