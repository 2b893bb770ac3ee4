"""The sizes that a schedule takes."""

from collections.abc import Iterator
from typing import NamedTuple

from parallel_core.findings import Finding, Setting
from parallel_core.schedules.dualpipev import DUALPIPE_V, fewest_micro_batches
from parallel_core.schedules.folded import CHUNKS
from parallel_core.schedules.generators import COMBINED, FOLDED


class Asked(NamedTuple):
    """A pipeline schedule and its sizes as findings show them: of each the flag or key, and the value."""

    schedule: Setting
    stages: Setting
    micro_batches: Setting
    chunks: Setting
    group_size: Setting


def refusals(
    name: str, stages: int, micro_batches: int, chunks: int, group_size: int | None, asked: Asked
) -> Iterator[Finding]:
    """Findings for sizes that the schedule called `name` does not take, or a group size that has no effect on it; if
    there are several faults, not always a finding for each. asked: the same sizes for the findings' words."""
    if name in FOLDED:
        yield from _of_folded(stages, chunks, group_size, asked)
        if name == DUALPIPE_V and micro_batches < fewest_micro_batches(stages):
            rule = f"must be at least {fewest_micro_batches(stages)} with {asked.schedule} and {asked.stages}"
            yield asked.micro_batches.breaks(rule, "raise it, or use zb-v")
    elif name == "interleaved" or (name == COMBINED and chunks > 1):
        yield from _of_interleaved(stages, micro_batches, chunks, group_size, asked)
    elif chunks > 1:
        yield asked.chunks.breaks(f"needs the interleaved schedule, not {asked.schedule}", "change one of them")
    elif group_size is not None:
        yield asked.group_size.breaks("needs virtual stages, of which there are none", "leave it out")


def _of_folded(stages: int, chunks: int, group_size: int | None, asked: Asked) -> Iterator[Finding]:
    if stages < 2:
        yield asked.schedule.breaks(f"needs 2 or more stages, not {asked.stages}", "raise that or leave this out")
    elif chunks != CHUNKS:
        yield asked.chunks.breaks(f"must be {CHUNKS} with {asked.schedule}, which folds the pipeline", "leave it out")
    if group_size is not None:
        yield asked.group_size.breaks(f"is of the interleaved schedule, not of {asked.schedule}", "leave it out")


def _of_interleaved(
    stages: int, micro_batches: int, chunks: int, group_size: int | None, asked: Asked
) -> Iterator[Finding]:
    """Findings by Megatron's rules for groups of micro-batches: a group has at least one for each stage, and so has the
    last, smaller one."""
    rest = micro_batches % (group_size or stages)
    if chunks < 2:
        yield asked.schedule.breaks(f"needs 2 or more virtual stages, not {asked.chunks}", "ask for some or use 1f1b")
    elif stages < 2:
        yield asked.chunks.breaks(f"needs 2 or more stages, not {asked.stages}", "raise that or leave this out")
    elif group_size is None and rest:
        yield asked.micro_batches.breaks(f"must be a multiple of {asked.stages} for interleaving", "change one of them")
    elif group_size is not None and not stages <= group_size <= micro_batches:
        yield asked.group_size.breaks(
            f"must be at least {asked.stages} and at most the {micro_batches} micro-batches of {asked.micro_batches}",
            "change it",
        )
    elif 0 < rest < stages:
        yield asked.group_size.breaks(
            f"leaves a last group of {rest} of the {micro_batches} micro-batches of {asked.micro_batches}, which must "
            f"be none or at least {asked.stages}",
            "change one of them",
        )
