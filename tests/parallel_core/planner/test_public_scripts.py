"""Plans of public launch scripts at the number of processes that they start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from mapping.plan import plan_of
from mapping.reading import read, stops
from parallel_core.planner.answer import answer
from tests.support.assets import recorded

pytestmark = pytest.mark.slow

COUNT = 60


def starting(scripts: list[dict[str, Any]]) -> Iterator[tuple[list[str], int]]:
    """(arguments, world size) of recorded public scripts that start as they are, spread over the list, which is sorted
    by repository and folder."""
    own = [script for script in scripts if script["world_from"] in ("script", "recipe")]
    spread = sorted(range(len(own)), key=lambda number: number % 7)
    for script in (own[number] for number in spread):
        world = script["world"]["nnodes"] * script["world"]["nproc"]
        if not stops(read(script["argv"], world_size=world)):
            yield script["argv"], world


def planned_in(argv: list[str], world: int) -> float:
    """Seconds of processor time that a whole `plan --json` answer takes, not counting other processes on the
    machine."""
    start = time.process_time()
    found = answer(plan_of(argv, world, "Ascend-910B"))
    seconds = time.process_time() - start
    assert found["step_seconds"]["total"] > 0 and all(stage["total_bytes"] > 0 for stage in found["memory"]["stages"])
    return seconds


def test_sixty_public_scripts_are_planned_in_under_a_second_each():
    """Sixty public scripts of several world sizes are planned without an error, each in under a second of processor
    time (best of three)."""
    chosen = [*islice(starting(recorded("megatron_flags/scripts.json.xz")["scripts"]), COUNT)]
    assert len(chosen) == COUNT and len({world for _, world in chosen}) >= 5
    slow = [script for script in chosen if planned_in(*script) >= 1.0]
    assert all(min(planned_in(*script) for _ in range(2)) < 1.0 for script in slow)
