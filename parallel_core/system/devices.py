"""Which devices this host has, without asking MindSpore."""

import os
from pathlib import Path


def has_ascend() -> bool:
    """Whether this host has one: its driver makes /dev/davinci*; a dry run (MS_SIMULATION_LEVEL) needs none."""
    return any(Path("/dev").glob("davinci*")) or "MS_SIMULATION_LEVEL" in os.environ


def is_on_cpu(asked: str | None) -> bool:
    """Whether a process computes on a CPU: as --device-target asks, else as this host lets one expect."""
    return (asked or ("Ascend" if has_ascend() else "CPU")) == "CPU"
