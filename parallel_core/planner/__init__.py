"""Predictions of a run from its configuration and a description of the device: memory, time, and the best layout.

Memory and time are sums of named parts, with ranges. Needs no device.
"""

from parallel_core.planner.device import Device, find_device
from parallel_core.planner.plan import Plan

__all__ = ["Device", "Plan", "find_device"]
