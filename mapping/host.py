"""Whether this host can run a job: its devices and its memory."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from mapping.memory import memory_of_stages
from parallel_core.config import AllConfig
from parallel_core.devices import has_ascend
from parallel_core.findings import Finding


def does_not_fit(config: AllConfig, ranks: int = 1) -> Iterator[Finding]:
    """Findings about a run of so many ranks that this host cannot do.

    On a CPU they must lie in its memory. Each is counted as one of the stage that needs the least, so that nothing is
    refused that might fit.
    """
    parallel = config.parallel_config
    if parallel.device_target == "Ascend" and not has_ascend():
        rule = "this host has no Ascend device (/dev/davinci*)"
        yield Finding("--device-target", "Ascend", rule, "start on one that has, or use --device-target CPU")
    stages = memory_of_stages(config)
    if not (stages and parallel.is_on_cpu):
        return
    least, present = min(needed.total for needed in stages), psutil.virtual_memory().total + psutil.swap_memory().total
    if ranks * least > present:
        rule = f"of {ranks} on this host, which has {_gib(present)} with swap"
        fix = "make the model smaller, or share it out over more hosts; mapping.explain says each stage's memory"
        yield Finding("memory of a rank", _gib(least), rule, fix)


def _gib(number: int) -> str:
    return f"{number / 2**30:,.1f} GiB"
