"""A device's calibration refined by what finished runs have recorded (`--trace`)."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.commit import EVENTS
from parallel_core.config import AllConfig
from parallel_core.config.serialise import build, values_of
from parallel_core.costs.traffic import step_traffic
from parallel_core.numerics.dtypes import Array
from parallel_core.planner.beside import measured_seconds
from parallel_core.planner.device import Calibration, Device
from parallel_core.planner.plan import Plan
from parallel_core.topology.topology import Topology
from parallel_core.trace import Kind, Span, read_chrome

ROUNDS = 6
"""Rounds of fitting where a host starts a device's operations: launches count there only as far as they take longer
than all else, so that times are not linear in the calibration."""
LEAST_RANGE = 0.05
"""The smallest relative error of a time that a refined device claims; one run says nothing of smaller differences."""


@dataclass(frozen=True)
class Recorded:
    """A finished run: its configuration, and the spans of each recorded step of each rank."""

    config: AllConfig
    steps: Mapping[tuple[int, int], Sequence[Span]]
    """(rank, step) -> spans of that step."""


def typical_steps(run: Recorded) -> list[int]:
    """Numbers of the recorded steps, the shortest first, without the quarter that took the least time (on its slowest
    rank) and the quarter that took the most: those that compile operators, or find the machine idle or busy by
    chance."""
    took: Counter[int] = Counter()
    for (_, step), spans in run.steps.items():
        longest = max((span.seconds for span in spans if span.kind is Kind.STEP), default=0.0)
        took[step] = max(took[step], longest)  # type: ignore[assignment]
    numbers, quarter = sorted(took, key=took.__getitem__), len(took) // 4
    return numbers[quarter : len(numbers) - quarter]


def mean_seconds(run: Recorded, topology: Topology) -> dict[int, dict[str, float]]:
    """Rank -> seconds that each part of a step took, the mean of the typical steps."""
    sums: dict[int, Counter[str]] = {}
    steps = typical_steps(run)
    for (rank, step), spans in run.steps.items():
        if step in steps:
            sums.setdefault(rank, Counter()).update(measured_seconds(spans, topology))
    return {rank: {part: seconds / len(steps) for part, seconds in sums[rank].items()} for rank in sorted(sums)}


def read_run(folder: Path) -> Recorded:
    """The run that has left its events and trace in a folder. Raises ValueError saying what is missing, OSError if a
    file cannot be read."""
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


def refined(device: Device, runs: Sequence[Recorded]) -> Device:
    """The device whose plans of the runs take as long as these did, as nearly as one calibration can. Shares of peaks
    and a launch's time are fitted to the times of forwards and backwards; the update to its own; each kind of message
    to its own. The relative error of time is the largest that is left, at least 5%."""
    seen = [Seen.of(device, run) for run in runs]
    crowded = [one for one in seen if not one.is_alone] or seen
    found = replace(device, messages=_scaled(device, seen))
    updated = _ratio(found, crowded, ("optimizer",))
    calibration = found.calibration
    share = (calibration.update or calibration.elementwise) / updated
    found = replace(found, calibration=replace(calibration, update=share))
    for _ in range(1 if device.cores else ROUNDS):
        found = replace(found, calibration=_fitted(found, crowded))
    found = _with_speed_alone(found, [one for one in seen if one.is_alone])
    ranks = " and ".join(str(run.config.parallel_config.world_size) for run in runs)
    source = f"{device.calibration.source}; refined by a run of {ranks} ranks"
    ranges = replace(device.calibration.ranges, time=max(LEAST_RANGE, round(_largest_error(found, seen), 3)))
    return replace(found, calibration=replace(found.calibration, source=source, ranges=ranges))


@dataclass(frozen=True)
class Seen:
    """The measured seconds of a run's step, means of its typical steps."""

    config: AllConfig
    seconds: Mapping[int, Mapping[str, float]]
    """Rank -> seconds of each part of a step."""
    moved: Mapping[str, float]
    """Collective, or send -> seconds in which its messages moved data in a step, summed over all ranks."""
    is_alone: bool
    """Whether the run had fewer ranks than the node has cores."""

    @classmethod
    def of(cls, device: Device, run: Recorded) -> "Seen":
        """The measured seconds of a run on a kind of device."""
        plan, world = Plan(run.config, device), run.config.parallel_config.world_size
        return cls(run.config, *_measured(plan, run), world < device.cores)

    def passes(self, device: Device) -> float:
        """Predicted seconds of forwards and backwards over measured ones, without messages, all ranks summed."""
        return 1 / _ratio(device, [self], PASSES)


PASSES = ("forward", "backward")
LEAST_LAUNCH = 0.1
"""The smallest factor by which the seconds of a launch may change: noise must not make it 0."""
TRUST = 0.02
"""The weight, in least squares, of each deviation of a kind's factor from the common one, where a run's relative error
has weight 1."""


def _fitted(device: Device, seen: Sequence[Seen]) -> Calibration:
    """The device's calibration with a new time for each kind of operation: the factors that give the runs' passes
    the least squares of relative errors. One run, or several with the same mixture of operations, change all kinds
    alike."""
    old = device.calibration
    slower = {
        "products": replace(old, products=old.products / 2),
        "attention": replace(old, attention=old.attention / 2),
        "elementwise": replace(old, elementwise=old.elementwise / 2, update=old.update or old.elementwise),
        "launch": replace(old, launch=old.launch * 2),
    }
    rows = [[one.passes(device), *_more(one, device, slower.values())] for one in seen]
    least = [old.products, old.attention, old.elementwise, LEAST_LAUNCH]  # no share of a peak is above 1
    ratio = dict(zip(slower, _multiples(np.array(rows), least), strict=True))
    shares = {kind: getattr(old, kind) / ratio[kind] for kind in ("products", "attention", "elementwise")}
    return replace(old, **shares, launch=old.launch * ratio["launch"], update=old.update or old.elementwise)


def _more(seen: Seen, device: Device, calibrations: Iterable[Calibration]) -> list[float]:
    """For each calibration, the predicted seconds of the run's passes beyond those with the device's own, divided by
    the measured."""
    base = seen.passes(device)
    return [seen.passes(replace(device, calibration=one)) - base for one in calibrations]


def _multiples(rows: Array, least: Sequence[float]) -> list[float]:
    """The factor of the seconds of each kind: one that is common to all, plus a deviation of each, by least squares.

    rows: [runs, 1 + kinds], predicted seconds of all kinds together and of each, divided by the measured. Kinds whose
    factor would be below `least` take that, and the others are fitted anew.
    """
    held = set[int]()
    while True:
        free = [kind for kind in range(len(least)) if kind not in held]
        fixed = [1 + kind for kind in sorted(held)]
        whole = rows[:, 0] - rows[:, fixed].sum(axis=1)
        above = np.column_stack([whole, rows[:, [1 + kind for kind in free]]])
        alike = np.column_stack([np.zeros(len(free)), TRUST * np.eye(len(free))])
        rest = 1.0 - rows[:, fixed] @ np.array([least[kind - 1] for kind in fixed])
        wanted = np.concatenate([rest, np.zeros(len(free))])
        common, *own = np.linalg.lstsq(np.concatenate([above, alike]), wanted, rcond=None)[0].tolist()
        found = dict(enumerate(least)) | {kind: common + change for kind, change in zip(free, own, strict=True)}
        below = {kind for kind in free if found[kind] < least[kind]}
        if not below or len(below) == len(free):
            return [max(found[kind], least[kind]) for kind in range(len(least))]
        held |= below


def _with_speed_alone(device: Device, seen: Sequence[Seen]) -> Device:
    """The device with the speed of a rank beside idle cores (`alone`), from runs that had some; as it is without such a
    run."""
    if not seen:
        return device
    crowded = replace(device, calibration=replace(device.calibration, alone=None))
    return replace(device, calibration=replace(device.calibration, alone=1 / _ratio(crowded, seen, PASSES)))


def stage_of(plan: Plan, rank: int) -> int:
    """The pipeline stage of a rank."""
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


def _ratio(device: Device, seen: Sequence[Seen], parts: Sequence[str]) -> float:
    """Measured seconds of these parts over predicted ones, summed over all ranks of all runs; 1 where one of them is
    0."""
    measured = predicted = 0.0
    for one in seen:
        plan = Plan(one.config, device)
        measured += sum(own[part] for own in one.seconds.values() for part in parts)
        predicted += sum(plan.step.of_stage(stage_of(plan, rank))[part] for rank in one.seconds for part in parts)
    return measured / predicted if measured and predicted else 1.0


def _scaled(device: Device, seen: Sequence[Seen]) -> dict[str, tuple[tuple[float, float], ...]]:
    """The device's measured messages (collective, or send -> (bytes, seconds) points) with their seconds multiplied so
    that a step's messages take as long as in the runs."""
    predicted: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for one in seen:
        plan = Plan(one.config, device)
        moved.update(one.moved)
        stages = [stage_of(plan, rank) for rank in range(one.config.parallel_config.world_size)]
        for stage, ranks in Counter(stages).items():
            for sent in step_traffic(plan.stages[stage]):
                predicted[sent.operation] += ranks * plan.speed.message(sent)  # type: ignore[assignment]
    found = {}
    for operation, points in device.messages.items():
        both = predicted.get(operation) and moved.get(operation)
        ratio = moved[operation] / predicted[operation] if both else 1.0
        found[operation] = tuple((size, seconds * ratio) for size, seconds in points)
    return found


def _largest_error(device: Device, seen: Sequence[Seen]) -> float:
    """The largest relative error of the planned step's time on any rank of any run."""
    errors = (
        abs(Plan(one.config, device).step.total / sum(own.values()) - 1) for one in seen for own in one.seconds.values()
    )
    return max(errors, default=0.0)
