"""Whether a job fits: the memory of a rank of each pipeline stage, as `parallel_core.costs` predicts it."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any

import psutil

from parallel_core.config import AllConfig, ParallelConfig
from parallel_core.config.base import Unjudged
from parallel_core.costs import MemoryBytes, StagePlan, memory
from parallel_core.findings import Finding
from parallel_core.system.environment import has_ascend

COLUMNS = [field.name for field in fields(MemoryBytes)]


def memory_of_stages(config: AllConfig) -> list[MemoryBytes]:
    """Of each stage; nothing where a size is not known yet, such as the vocabulary's that a tokenizer's files say."""
    try:
        return [
            memory(StagePlan(config, stage)) for stage in range(config.parallel_config.pipeline_model_parallel_size)
        ]
    except Unjudged:
        return []


def as_lines(config: AllConfig) -> Iterator[str]:
    """A table; neighbouring stages that need the same share a line."""
    stages = memory_of_stages(config)
    if not stages:
        yield "memory of a rank: not known before the vocabulary is; add --check-files, or give --vocab-size"
        return
    names = [name.replace("_", " ") for name in (*COLUMNS, "in all")]
    yield "memory of a rank, in MiB, without what operators, messages and the program itself need:"
    yield "".join([f"  {'stages':10}", *(f"{name:>23}" for name in names)])
    for needed, run in groupby(enumerate(stages), key=lambda numbered: numbered[1]):
        numbers = [number for number, _ in run]
        label = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} - {numbers[-1]}"
        sizes = [*asdict(needed).values(), needed.total]
        yield "".join([f"  {label:10}", *(f"{size / 2**20:>23,.1f}" for size in sizes)])
    yield from _of_results(config.parallel_config)


def _of_results(parallel: ParallelConfig) -> Iterator[str]:
    """What a CPU does unasked."""
    made_again = "results of norms and of activation functions are made again instead of being kept"
    if parallel.drops_outputs:
        yield f"  On a CPU {made_again} (docs/recompute.md)."
    elif parallel.drops_outputs_on_cpu:
        yield f"  On a CPU activations are fewer: {made_again}; --device-target CPU counts so."


def as_json(config: AllConfig) -> list[dict[str, Any]]:
    """Bytes, stage by stage."""
    return [{**asdict(needed), "total": needed.total} for needed in memory_of_stages(config)]


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
        fix = "make the model smaller, or share it out over more hosts; python -m mapping explain shows every stage"
        yield Finding("memory of a rank", _gib(least), rule, fix)


def _gib(number: int) -> str:
    return f"{number / 2**30:,.1f} GiB"
