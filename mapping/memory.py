"""The memory of a rank of each pipeline stage, as planned, and findings about runs that do not fit on this host."""

from collections.abc import Iterator
from typing import Any

import psutil

from parallel_core.config import AllConfig
from parallel_core.config.base import Unjudged
from parallel_core.findings import Finding
from parallel_core.planner import Plan
from parallel_core.planner.memory import StageMemory
from parallel_core.planner.report import memory_lines
from parallel_core.recompute.plan import NORMS
from parallel_core.system.environment import has_ascend


def _planned(config: AllConfig) -> tuple[Plan, list[StageMemory]] | None:
    """The run's plan, and the memory of a rank of each stage; None where a size is not known yet."""
    try:
        plan = Plan.of_run(config)
        return plan, plan.memory
    except Unjudged:
        return None


def memory_of_stages(config: AllConfig) -> list[StageMemory]:
    """The memory of a rank of each pipeline stage by `Plan.of_run`; empty where a size is not known yet, such as that
    of a vocabulary that only the tokenizer's files give. Raises ConfigError as `find_device`."""
    planned = _planned(config)
    return planned[1] if planned else []


def as_lines(config: AllConfig) -> Iterator[str]:
    """The lines of the plan's table of memory, in MiB, and a note if results are recomputed on a CPU without being
    asked for; where the memory is not known, one line that says so. Raises ConfigError as `find_device`."""
    planned = _planned(config)
    if not planned:
        yield "memory of a rank: not known before the vocabulary is; add --check-files, or give --vocab-size"
        return
    plan, stages = planned
    yield from memory_lines(stages, "MiB")
    yield from _of_results(plan)


def _of_results(plan: Plan) -> Iterator[str]:
    """A note, or none, that results of norms or activation functions are recomputed on a CPU without being asked
    for."""
    parallel, parts = plan.config.parallel_config, _recomputed_unasked(plan)
    made_again = f"results of {' and of '.join(parts)} are recomputed instead of being saved"
    if parts and parallel.drops_outputs:
        yield f"  On a CPU {made_again} (docs/recompute.md)."
    elif parts and parallel.drops_outputs_on_cpu:
        yield f"  On a CPU activations are fewer: {made_again}; --device-target CPU counts so."


def _recomputed_unasked(plan: Plan) -> list[str]:
    """The kinds of parts, as words, whose results a CPU recomputes in some layer although no flag asks for it."""
    norms, kinds = not plan.config.model_config.apply_residual_connection_post_norm, set[bool]()
    for stack in (chunk.decoder.layers for stage in plan.stages for chunk in stage.chunks):
        for (_, layer), asked in zip(stack.layers, stack.recompute.layers, strict=True):
            dropped = asked.dropping_outputs(layer.parts(), norms)
            kinds |= {part.flag == NORMS for part in dropped.parts if part in dropped.droppable}
    return [word for is_norm, word in ((True, "norms"), (False, "activation functions")) if is_norm in kinds]


def as_json(config: AllConfig) -> list[dict[str, Any]]:
    """For each stage the memory of a rank in bytes: "parts" (name -> bytes on the device), "elsewhere" (name -> bytes
    in host memory or a file instead, of activations as in `StageMemory`), and "total", the sum of the parts, without
    what the runtime reserves; empty where `memory_of_stages` is. Raises ConfigError as `find_device`."""
    return [
        {"parts": stage.parts, "elsewhere": stage.elsewhere, "total": stage.total} for stage in memory_of_stages(config)
    ]


def does_not_fit(config: AllConfig, ranks: int = 1) -> Iterator[Finding]:
    """Findings about a run that cannot start on this host: --device-target Ascend without an Ascend or, on a CPU, too
    little memory for `ranks` ranks.

    On a CPU the ranks must fit into the host's memory with swap. Each rank is counted as one of the pipeline stage that
    needs the least, at the lower end of its range. Memory that is not known is not judged.
    Raises ConfigError as `find_device`.
    """
    parallel = config.parallel_config
    if parallel.device_target == "Ascend" and not has_ascend():
        rule = "this host has no Ascend device (/dev/davinci*)"
        yield Finding("--device-target", "Ascend", rule, "start on one that has, or use --device-target CPU")
    stages = memory_of_stages(config)
    if not (stages and parallel.is_on_cpu):
        return
    least, present = min(needed.low for needed in stages), psutil.virtual_memory().total + psutil.swap_memory().total
    if ranks * least > present:
        rule = f"of {ranks} on this host, which has {_gib(present)} with swap"
        fix = "make the model smaller, or share it out over more hosts; python -m mapping explain shows every stage"
        yield Finding("memory of a rank", _gib(least), rule, fix)


def _gib(number: float) -> str:
    return f"{number / 2**30:,.1f} GiB"
