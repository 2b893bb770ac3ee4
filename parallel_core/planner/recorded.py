"""Runs whose steps were recorded (`--trace`), and the seconds of their parts beside a plan's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.commit import EVENTS
from parallel_core.config import AllConfig
from parallel_core.config.serialise import build, values_of
from parallel_core.planner.beside import measured_seconds
from parallel_core.planner.device import Device
from parallel_core.planner.plan import Plan
from parallel_core.system.files import parse_json
from parallel_core.topology.topology import Topology
from parallel_core.trace import Kind, Span, read_chrome

PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Recorded:
    """A run whose steps were recorded: its configuration, and the spans of each recorded step of each rank, by (rank,
    step)."""

    config: AllConfig
    steps: Mapping[tuple[int, int], Sequence[Span]]
    """(rank, step) -> spans of that step."""


def typical_steps(run: Recorded) -> list[int]:
    """Numbers of the recorded steps, the shortest first, without the shortest and the longest quarter of them (each
    rounded down), in which operators may be compiled, or the machine be idle or busy by chance. A step takes as long as
    its longest span of the kind STEP on any rank; 0 if there is none."""
    took: Counter[int] = Counter()
    for (_, step), spans in run.steps.items():
        longest = max((span.seconds for span in spans if span.kind is Kind.STEP), default=0.0)
        took[step] = max(took[step], longest)  # type: ignore[assignment]
    numbers, quarter = sorted(took, key=took.__getitem__), len(took) // 4
    return numbers[quarter : len(numbers) - quarter]


def mean_seconds(run: Recorded, topology: Topology) -> dict[int, dict[str, float]]:
    """Rank -> seconds that each part of a step took (`measured_seconds`), the mean of the typical steps; a typical step
    of which a rank has no span of the kind STEP counts as 0 seconds. A rank without any span in a typical step is not
    there; one with spans, but none of the kind STEP, has no parts. topology: the run's."""
    sums: dict[int, Counter[str]] = {}
    steps = typical_steps(run)
    for (rank, step), spans in run.steps.items():
        if step in steps:
            sums.setdefault(rank, Counter()).update(measured_seconds(spans, topology))
    return {rank: {part: seconds / len(steps) for part, seconds in sums[rank].items()} for rank in sorted(sums)}


def read_run(folder: Path) -> Recorded:
    """The run that has left its events and trace in a folder, with the configuration of its last start. Raises
    ValueError for an event that is no JSON object, a trace of another form, a configuration that is wrong now, and
    where there is no start, the last one has no configuration, or the trace has no span; OSError if a file is missing
    or cannot be read."""
    started: dict[str, Any] = {}
    for number, line in enumerate((folder / EVENTS).read_text(encoding="utf-8").splitlines(), 1):
        event = parse_json(line, folder / EVENTS)
        if not isinstance(event, dict):
            raise ValueError(f"{folder / EVENTS}: line {number} is no JSON object; give the folder of a run's files")
        started = event if event.get("event") == "start" else started
    steps: dict[tuple[int, int], list[Span]] = {}
    for span in read_chrome(folder / "trace.json"):
        steps.setdefault((span.rank, span.step), []).append(span)
    if not started or not steps:
        raise ValueError(f"{folder}: has no start or no recorded step; train with --trace")
    config = started.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"{folder / EVENTS}: its last start has no configuration; train with --trace anew")
    return Recorded(build(values_of(config)), steps)


def joined(runs: Sequence[Recorded]) -> Recorded:
    """One run with the steps of all `runs` (one or more); those of each run get numbers above those of the runs before
    it. The configuration is the first run's."""
    steps: dict[tuple[int, int], Sequence[Span]] = {}
    for run in runs:
        before = 1 + max((step for _, step in steps), default=-1)
        steps |= {(rank, before + step): spans for (rank, step), spans in run.steps.items()}
    return Recorded(runs[0].config, steps)


@dataclass(frozen=True)
class Seen:
    """The measured seconds of a run's step, means of its typical steps: by rank and part, and of moving data by
    collective (or send), all ranks summed. `is_alone`: whether the run had fewer ranks than a node has cores
    (`Device.cores`)."""

    config: AllConfig
    seconds: Mapping[int, Mapping[str, float]]
    """Rank -> seconds of each part of a step."""
    moved: Mapping[str, float]
    """Collective, or send -> seconds in which its messages moved data in a step, summed over all ranks."""
    is_alone: bool
    """Whether the run had fewer ranks than a node has cores; False on a device without `Device.cores`."""

    @classmethod
    def of(cls, device: Device, run: Recorded) -> "Seen":
        """The measured seconds of a run on a kind of device."""
        plan, world = Plan(run.config, device), run.config.parallel_config.world_size
        return cls(run.config, *_measured(plan, run), world < device.cores)


def stage_of(plan: Plan, rank: int) -> int:
    """The number, from 0, of a rank's pipeline stage."""
    return list(plan.placement.topology.group("pp", rank)).index(rank)


def _measured(plan: Plan, run: Recorded) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
    """Means of the typical steps: rank -> part -> seconds, and collective, or send -> seconds in which messages moved,
    all ranks summed."""
    moved: Counter[str] = Counter()
    steps = typical_steps(run)
    for (_, step), spans in run.steps.items():
        for span in spans:
            if span.kind is Kind.MOVING and step in steps:
                operation = span.name.partition(" ")[0]
                moved["send" if operation == "recv" else operation] += span.seconds / len(steps)  # type: ignore[assignment]
    seconds = mean_seconds(run, plan.placement.topology)
    return {rank: parts for rank, parts in seconds.items() if parts}, dict(moved)


def ratio_of(device: Device, seen: Sequence[Seen], parts: Sequence[str]) -> float:
    """Measured seconds of these parts over predicted ones, each summed over the measured ranks of all runs; 1 where
    either sum is 0. parts: names that both measured and planned steps have, such as "forward"."""
    measured = predicted = 0.0
    for one in seen:
        plan = Plan(one.config, device)
        measured += sum(own[part] for own in one.seconds.values() for part in parts)
        predicted += sum(plan.step.of_stage(stage_of(plan, rank))[part] for rank in one.seconds for part in parts)
    return measured / predicted if measured and predicted else 1.0
