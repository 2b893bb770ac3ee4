"""A device's calibration refined by what a finished run has recorded (`--trace`)."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from parallel_core.checkpoint.commit import EVENTS
from parallel_core.config import AllConfig
from parallel_core.config.serialise import build, values_of
from parallel_core.costs.traffic import step_traffic
from parallel_core.planner.beside import measured_seconds
from parallel_core.planner.device import Calibration, Device
from parallel_core.planner.plan import Plan
from parallel_core.trace import Kind, Span, read_chrome

ROUNDS = 6
"""Launches count where they take longer than all else, so that passes do not scale with their parts alone."""
LEAST_RANGE = 0.05
"""The smallest range of a time; one run says nothing of smaller differences."""


@dataclass(frozen=True)
class Recorded:
    """A run: its configuration, and the spans of each recorded step of each rank."""

    config: AllConfig
    steps: Mapping[tuple[int, int], Sequence[Span]]
    """(rank, step) -> spans."""


def read_run(folder: Path) -> Recorded:
    """The measured run in a folder. Raises ValueError saying what is missing, OSError if there is no folder."""
    started: dict[str, Any] = {}
    for line in (folder / EVENTS).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        started = event if event.get("event") == "start" else started
    steps: dict[tuple[int, int], list[Span]] = {}
    for span in read_chrome(folder / "trace.json"):
        steps.setdefault((span.rank, span.step), []).append(span)
    if not started or not steps:
        raise ValueError(f"{folder}: has no start or no recorded step; train with --trace")
    return Recorded(build(values_of(started["config"])), steps)


def refined(device: Device, run: Recorded) -> Device:
    """The device whose plan of the run takes as long as the run did: its shares and launches scaled as its passes are,
    the update and each kind of message by themselves. The range is what is left of the step's time, at least 5%."""
    plan = Plan(run.config, device)
    seconds, moved = _measured(plan, run)
    found = replace(device, messages=_scaled(plan, moved))
    for _ in range(ROUNDS):
        found = replace(found, calibration=_scaled_passes(Plan(run.config, found), seconds))
    old, left = found.calibration, _largest_error(Plan(run.config, found), seconds)
    source = f"{old.source}; refined by a run of {run.config.parallel_config.world_size} ranks"
    ranges = replace(old.ranges, time=max(LEAST_RANGE, round(left, 3)))
    return replace(found, calibration=replace(old, source=source, ranges=ranges))


def _scaled_passes(plan: Plan, seconds: Mapping[int, Mapping[str, float]]) -> Calibration:
    old = plan.device.calibration
    computed, updated = (_ratio(seconds, plan, parts) for parts in (("forward", "backward"), ("optimizer",)))
    return replace(
        old,
        products=old.products / computed,
        attention=old.attention / computed,
        elementwise=old.elementwise / computed,
        launch=old.launch * computed,
        update=(old.update or old.elementwise) / updated,
    )


def stage_of(plan: Plan, rank: int) -> int:
    """The pipeline stage of a rank."""
    return list(plan.placement.topology.group("pp", rank)).index(rank)


def _measured(plan: Plan, run: Recorded) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
    """Rank -> median seconds of each part; and of all ranks the seconds in which messages moved, by operation."""
    rows: dict[int, list[dict[str, float]]] = {}
    moved: Counter[str] = Counter()
    for (rank, _), spans in run.steps.items():
        rows.setdefault(rank, []).append(measured_seconds(spans, plan.placement.topology))
        for span in spans:
            if span.kind is Kind.MOVING:
                operation = span.name.partition(" ")[0]
                moved["send" if operation == "recv" else operation] += span.seconds  # type: ignore[assignment]
    found = {rank: {part: median(row[part] for row in own) for part in own[0]} for rank, own in rows.items() if own[0]}
    recorded = max(1, len(run.steps))
    return found, {operation: total * len(found) / recorded for operation, total in moved.items()}


def _ratio(seconds: Mapping[int, Mapping[str, float]], plan: Plan, parts: Sequence[str]) -> float:
    """Measured over predicted, of all ranks."""
    measured = sum(own[part] for own in seconds.values() for part in parts)
    predicted = sum(plan.step.of_stage(stage_of(plan, rank))[part] for rank in seconds for part in parts)
    return measured / predicted if measured and predicted else 1.0


def _scaled(plan: Plan, moved: Mapping[str, float]) -> dict[str, tuple[tuple[float, float], ...]]:
    """The device's messages with the times that the run's took, of a step of all recorded ranks."""
    predicted: Counter[str] = Counter()
    stages = [stage_of(plan, rank) for rank in range(plan.config.parallel_config.world_size)]
    for stage, ranks in Counter(stages).items():
        for one in step_traffic(plan.stages[stage]):
            predicted[one.operation] += ranks * plan.speed.message(one)  # type: ignore[assignment]
    found = {}
    for operation, points in plan.device.messages.items():
        both = predicted.get(operation) and moved.get(operation)
        ratio = moved[operation] / predicted[operation] if both else 1.0
        found[operation] = tuple((size, seconds * ratio) for size, seconds in points)
    return found


def _largest_error(plan: Plan, seconds: Mapping[int, Mapping[str, float]]) -> float:
    """The largest error of the step's time on any rank."""
    return max((abs(plan.step.total / sum(own.values()) - 1) for own in seconds.values()), default=0.0)
