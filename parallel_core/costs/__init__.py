"""Figures that follow from the configuration alone: floating-point operations, parameters, bytes between ranks."""

from parallel_core.costs.flops import forward_flops_per_token, training_flops
from parallel_core.costs.parameters import buffer_elements, stage_parameters
from parallel_core.costs.traffic import Traffic, step_traffic

__all__ = [
    "Traffic",
    "buffer_elements",
    "forward_flops_per_token",
    "stage_parameters",
    "step_traffic",
    "training_flops",
]
