"""Predictions against published runs: memory, step time, bubbles of schedules, with one calibration for each kind of
device."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from mapping.plan import plan_of
from parallel_core.planner import Plan
from parallel_core.schedules import GENERATORS, Placement
from parallel_core.schedules.generators import TIMED
from parallel_core.schedules.simulate import Times
from tests.support.assets import asset
from tests.support.bubbles import bubble_rate

pytestmark = pytest.mark.slow

GIBIBYTE = 2**30


def published(name: str) -> list[dict[str, str]]:
    """The rows of a table in tests/assets/published_runs."""
    with asset(f"published_runs/{name}.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def planned(row: dict[str, str]) -> Plan:
    """The plan of a row's flags, devices and kind of device."""
    return plan_of(row["megatron_flags"].split(), int(row["devices"]), row["device"])


def test_memory_of_measured_runs():
    """Predicted bytes of the first and last stage are within 1% of the published ones, and within 0.3% on average; each
    measured size lies in the printed range."""
    errors = {}
    for row in published("memory"):
        memory = planned(row).memory
        for name, stage in (("first", memory[0]), ("last", memory[-1])):
            measured = float(row[f"{name}_stage_gib"])
            errors[row["id"], name] = stage.total / GIBIBYTE / measured - 1
            assert stage.low <= measured * GIBIBYTE <= stage.high
            assert all(size >= 0 for size in stage.parts.values())
    assert sum(map(abs, errors.values())) / len(errors) <= 0.003
    assert max(errors.values()) <= 0.01 and min(errors.values()) >= -0.01, errors


@pytest.mark.parametrize(("source", "mean"), [("korthikanti", 0.036), ("vtrain", 0.08), ("mlperf", 0.08)])
def test_time_of_measured_runs(source, mean):
    """The mean error of a source's step times is at most `mean`, and nine of ten lie within the printed range."""
    errors, within = [], 0
    for row in published("times"):
        if row["id"].startswith(source):
            step, measured = planned(row).step, float(row["step_s"])
            errors.append(abs(step.total / measured - 1))
            within += step.low <= measured <= step.high
    assert len(errors) >= 4
    assert sum(errors) / len(errors) <= mean, errors
    assert within >= 0.9 * len(errors)


SCHEDULES = {"1F1B": "1f1b", "ZB-H1": "zb-h1", "ZB-H2": "zb-h2", "1F1B-I": "interleaved"}
LAYERS_OF_STAGE = {"8": 3, "16": 3, "32": 2}
HALF = 0.5
"""The part of an activation that the backward of inputs frees, as Qi et al. count."""


def times_of(row: dict[str, str], **more: Any) -> Times:
    """The times of forward, backward, weight gradient and transfer in a row, in milliseconds."""
    forward, inputs, weight, transfer = (float(row[f"t_{name}_ms"]) for name in ("f", "b", "w", "comm"))
    return Times(forward, inputs + weight, weight, transfer, **more)


@pytest.mark.parametrize("row", published("bubbles"), ids=lambda row: row["id"])
def test_bubbles_of_published_schedules(row):
    """Bubble rates equal 71 of the 72 rows of table 5 of Qi et al. (2023) to the printed digits, ZB-1p and ZB-2p with
    weight gradients placed by the printed times. Left out: ZB-2p of 28.3B with 256 micro-batches, which needs a forward
    left out of the steady state (0.0018; ours is 0.0023)."""
    stages, micro_batches, times = int(row["stages"]), int(row["micro_batches"]), times_of(row)
    chunks = 1
    if row["schedule"] == "1F1B-I":
        chunks = 4 if "6.2B" in row["id"] else LAYERS_OF_STAGE[row["stages"]]
    automatic = TIMED.get(row["schedule"].lower())
    if automatic:
        computes = automatic(stages, micro_batches, times=times, freed=HALF)
    else:
        computes = GENERATORS[SCHEDULES[row["schedule"]]](stages, micro_batches, chunks)
    found = bubble_rate(computes, times, micro_batches, Placement(stages, chunks))
    assert abs(found - float(row["bubble_rate"])) <= 0.00006
