"""--profile: MindSpore's profile of the iterations that are asked for, on the ranks that are."""

import json
from pathlib import Path

import pytest

from tests.support.distributed import run
from tests.support.pretraining import BATCHES, pretrain_tiny

DYNAMIC = {"start_step": 2, "stop_step": 2, "profiler_level": 0, "aic_metrics": -1, "activities": 1, "analyse": True}


def operators(folder: Path) -> dict[str, int]:
    """Matrix products in each trace, by the folder it is in."""
    return {
        path.relative_to(folder).parts[0]: sum(
            "MatMul" in event["name"] and event["ph"] == "X" for event in json.loads(path.read_text())
        )
        for path in folder.rglob("trace_view.json")
    }


@pytest.fixture(scope="module")
def profiled(tmp_path_factory) -> tuple[dict[str, int], dict[str, int]]:
    """One of four iterations on the second of two ranks; and two iterations."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    flags = f"{BATCHES} --train-iters 4 --kernels ops --profile --profile-data-simplification"
    steps = ("1 --profile-step-end 2 --profile-ranks 1", "2 --profile-step-end 9")
    for folder, more in zip(folders, steps, strict=True):
        run(2, pretrain_quietly, f"{flags} --profile-save-path {folder} --profile-step-start {more}")
    return operators(folders[0]), operators(folders[1])


def pretrain_quietly(backend, flags: str) -> None:
    pretrain_tiny(backend, flags)


def test_the_iterations_and_ranks_that_are_asked_for(profiled):
    """A profile that training ends before is written at its end; two iterations have twice the products of one."""
    one, two = profiled
    assert set(one) == {"rank_1"} and set(two) == {"rank_0", "rank_1"}
    assert one["rank_1"] > 10 and two["rank_1"] == 2 * one["rank_1"]


def test_a_directory_says_it_while_training_runs(tmp_path):
    config, out = tmp_path / "config", tmp_path / "out"
    config.mkdir()
    (config / "profiler_config.json").write_text(json.dumps({**DYNAMIC, "prof_path": str(out)}))
    where = f"--profile-save-path {out} --profile-dynamic-profiler-config-path {config}"
    run(1, pretrain_quietly, f"{BATCHES} --train-iters 3 --kernels ops --profile {where}")
    assert sum(operators(out).values()) > 10
