"""A device's calibration refined by what finished runs have recorded (`--trace`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from parallel_core.costs.traffic import step_traffic
from parallel_core.numerics.dtypes import Array
from parallel_core.planner.device import Device
from parallel_core.planner.plan import Plan
from parallel_core.planner.recorded import PASSES, Recorded, Seen, ratio_of, stage_of
from parallel_core.planner.speed import ALL_MESSAGES

ROUNDS = 6
"""Rounds of fitting. Each brings the rates nearer to those of the runs (`TRUST`); and where a host starts a device's
operations, launches count only as far as they take longer than all else, so that times are not linear in the
calibration."""
LEAST_RANGE = 0.05
"""The smallest relative error of a time that a refined device claims; one run says nothing of smaller differences."""


def refined(device: Device, runs: Sequence[Recorded]) -> Device:
    """A copy of the device with a calibration by which plans of the runs (one or more) take about as long as these did.
    Shares of peaks (on a CPU peaks rise if products exceed them) and a launch's time are fitted to the times of
    forwards and backwards; the update to its own; the device's measured messages, operation by operation, to theirs.
    Runs with fewer ranks than cores say how fast a rank beside idle cores is; on a CPU the others that have no pipeline
    say how long ranks wait for each other; elsewhere, or without such a run, these waits are 0. The relative error of
    time is the largest that is left, at least 5%."""
    device = _with(device, uneven=0.0, meeting=0.0)
    seen = [Seen.of(device, run) for run in runs]
    crowded = [one for one in seen if not one.is_alone] or seen
    found = replace(device, messages=_scaled(device, seen))
    updated = ratio_of(found, crowded, ("optimizer",))
    found = _with(found, update=(found.calibration.update or found.calibration.elementwise) / updated)
    for _ in range(ROUNDS):
        found = _fitted(found, crowded)
    found = _with_speed_alone(found, [one for one in seen if one.is_alone])
    found = _with_waits(found, [one for one in seen if not one.is_alone]) if device.cores else found
    ranks = " and ".join(str(run.config.parallel_config.world_size) for run in runs)
    source = f"{device.calibration.source}; refined by a run of {ranks} ranks"
    ranges = replace(device.calibration.ranges, time=max(LEAST_RANGE, round(_largest_error(found, seen), 3)))
    return _with(found, source=source, ranges=ranges)


def _with(device: Device, **changes: Any) -> Device:
    return replace(device, calibration=replace(device.calibration, **changes))


LEAST_FACTOR = 0.1
"""The smallest factor by which the seconds of a launch may change, and, where ranks share cores, those of products and
elementwise operations: noise must not make them 0."""
TRUST = 0.01
"""The weight, in least squares, of each deviation of a kind's factor from the common one, where a run's relative error
has weight 1."""


def _fitted(device: Device, seen: Sequence[Seen]) -> Device:
    """The device with a new time for each kind of operation: the factors that give the runs' forwards and backwards the
    least squares of errors, as parts of the passes. One run, or several with the same mixture of operations, change all
    kinds alike. Products may turn out faster than a measured peak, which then rises."""
    old = device.calibration
    launch_back = old.launch_of(is_backward=True)
    slower = {
        "products": {"products": old.products / 2, "grouped": old.grouped / 2},
        "attention": {"attention": old.attention / 2},
        "elementwise": {"elementwise": old.elementwise / 2, "update": old.update or old.elementwise},
        "launch": {"launch": old.launch * 2, "launch_back": launch_back},
        "launch_back": {"launch_back": 2 * launch_back},
        "grouped": {"grouped": 2 * old.grouped},
    }
    devices = [device, *(_with(device, **changes) for changes in slower.values())]
    rows = np.array([row for one in seen for row in _parts_of_passes(one, devices)])
    rows[:, 2:] -= rows[:, 1:2]
    products, elementwise = (LEAST_FACTOR, LEAST_FACTOR) if device.cores else (old.products, old.elementwise)
    least = [products, old.attention, elementwise, *3 * [LEAST_FACTOR]]
    ratio = dict(zip(slower, _multiples(rows, least), strict=True))
    found = _paced(_with(device, update=old.update or old.elementwise), ratio)
    return _paced(found, dict.fromkeys(ratio, ratio_of(found, seen, PASSES)))


def _paced(device: Device, ratio: Mapping[str, float]) -> Device:
    """The device with the seconds of each kind of operation multiplied by its ratio. Products above a measured peak
    raise that."""
    old = device.calibration
    shares = {kind: getattr(old, kind) / ratio[kind] for kind in ("products", "attention", "elementwise")}
    above = max(1.0, shares["products"])
    shares |= {kind: min(1.0, shares[kind] / above) for kind in ("products", "attention")}
    shares["elementwise"] = min(inf if device.cores else 1.0, shares["elementwise"])  # caches are faster than a copy
    peaks = {dtype: peak * (above if device.cores else 1.0) for dtype, peak in device.peak_flops.items()}
    shares |= {"launch": old.launch * ratio["launch"], "launch_back": old.launch_of(True) * ratio["launch_back"]}
    shares["grouped"] = old.grouped * ratio["grouped"] / ratio["products"]
    return _with(replace(device, peak_flops=peaks), **shares)


def _parts_of_passes(seen: Seen, devices: Sequence[Device]) -> list[list[float]]:
    """For the forward and for the backward of a run [measured seconds, predicted seconds on each of the devices], as
    parts of the measured seconds of both."""
    whole = sum(own[part] for own in seen.seconds.values() for part in PASSES)
    plans = [Plan(seen.config, device) for device in devices]
    ranks = {rank: stage_of(plans[0], rank) for rank in seen.seconds}
    rows = []
    for part in PASSES:
        measured = sum(own[part] for own in seen.seconds.values())
        predicted = [sum(plan.step.of_stage(stage)[part] for stage in ranks.values()) for plan in plans]
        rows.append([seconds / whole for seconds in (measured, *predicted)])
    return rows


def _multiples(rows: Array, least: Sequence[float]) -> list[float]:
    """The factor of the seconds of each kind: one that is common to all, plus a deviation of each, by least squares.

    rows: [equations, 2 + kinds], measured seconds, predicted seconds of all kinds together, and of each. Kinds whose
    factor would be below `least` take that, and the others are fitted anew.
    """
    held = set[int]()
    while True:
        free = [kind for kind in range(len(least)) if kind not in held]
        fixed = [2 + kind for kind in sorted(held)]
        whole = rows[:, 1] - rows[:, fixed].sum(axis=1)
        above = np.column_stack([whole, rows[:, [2 + kind for kind in free]]])
        alike = np.column_stack([np.zeros(len(free)), TRUST * np.eye(len(free))])
        rest = rows[:, 0] - rows[:, fixed] @ np.array([least[kind - 2] for kind in fixed])
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
    return _with(device, alone=1 / ratio_of(_with(device, alone=1.0), seen, PASSES))


WAITS = ("uneven", "meeting")
"""Keys of a calibration that say how long ranks wait for each other."""


def _with_waits(device: Device, seen: Sequence[Seen]) -> Device:
    """A device without `WAITS` with these, by least squares of the seconds that the runs' ranks were in exposed
    messages, as parts of the step; a pipeline's stages wait in the bubble."""
    runs = [one for one in seen if one.config.parallel_config.pipeline_model_parallel_size == 1]
    if not runs:
        return device
    waits = _not_negative(np.array([_waits(device, one) for one in runs]))
    return _with(device, **dict(zip(WAITS, waits, strict=True)))


def _waits(device: Device, seen: Seen) -> list[float]:
    """Parts of a run's step: the one that ranks were in exposed messages beyond the planned seconds; then for each of
    `WAITS` the one that is planned beyond these where its value is 1."""
    ranks = list(seen.seconds.values())
    whole, base = sum(sum(own.values()) for own in ranks) / len(ranks), _exposed(device, seen)
    waited = sum(own.get(part, 0.0) for own in ranks for part in ALL_MESSAGES) / len(ranks)
    planned = [_exposed(_with(device, **{key: 1.0}), seen) for key in WAITS]
    return [(seconds - base) / whole for seconds in (waited, *planned)]


def _exposed(device: Device, seen: Seen) -> float:
    """Planned seconds of a step's exposed messages."""
    planned = Plan(seen.config, device).step.of_stage(0)
    return sum(planned.get(part, 0.0) for part in ALL_MESSAGES)


def _not_negative(rows: Array) -> list[float]:
    """Factors, none below 0, with which the sum of the second and third columns of rows [runs, 3] has the least squares
    of differences from the first."""
    wanted, table = rows[:, 0], rows[:, 1:]
    found = np.linalg.lstsq(table, wanted, rcond=None)[0]
    if (found < 0).any():
        column = table[:, found.argmax()]
        found = np.where(found == found.max(), max(0.0, column @ wanted / (column @ column)), 0.0)
    return [float(value) for value in found]


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
