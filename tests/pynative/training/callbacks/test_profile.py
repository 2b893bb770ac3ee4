"""--profile: MindSpore's profile of the iterations that are asked for, on the ranks that are."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from parallel_core.config.profiler import ProfilerConfig
from pynative.training.callbacks import profile
from tests.support.distributed import run
from tests.support.engine import config_of, job
from tests.support.pretraining import BATCHES, pretrain_tiny

DYNAMIC = {"start_step": 8, "stop_step": 8, "profiler_level": 0, "aic_metrics": -1, "activities": 1, "analyse": True}


def operators(folder: Path) -> dict[str, int]:
    """Folder -> number of matrix products in the trace_view.json below it."""
    return {
        path.relative_to(folder).parts[0]: sum(
            "MatMul" in event["name"] and event["ph"] == "X" for event in json.loads(path.read_text())
        )
        for path in folder.rglob("trace_view.json")
    }


@pytest.fixture(scope="module")
def profiled(tmp_path_factory) -> list[dict[str, int]]:
    """`operators` of three runs of two ranks: iteration 1 on rank 1; iterations 4 - 9 of a training of 6; the default
    iterations."""
    flags, found = f"{BATCHES} --train-iters 6 --kernels ops --profile --profile-data-simplification", []
    for steps in (
        "--profile-step-start 1 --profile-step-end 2 --profile-ranks 1",
        "--profile-step-start 4 --profile-step-end 9",
        "",
    ):
        folder = tmp_path_factory.mktemp("profile")
        run(2, messages, f"{flags} --profile-save-path {folder} {steps}")
        found.append(operators(folder))
    return found


def messages(backend, flags: str) -> list[str]:
    """Lines that a run logs about its profile."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("log", "warn"):
            patch.setattr(profile, name, said.append)
        pretrain_tiny(backend, flags)
    return said


def test_the_iterations_and_ranks_that_are_asked_for(profiled):
    """A profile that training ends early is written at the end; its two iterations have twice the products of one, the
    default 1 - 4 four times."""
    one, two, default = profiled
    assert set(one) == {"rank_1"} and set(two) == set(default) == {"rank_0", "rank_1"}
    assert one["rank_1"] > 10 and two["rank_1"] == 2 * one["rank_1"] and default["rank_1"] == 4 * one["rank_1"]


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ("--kernels ops", "Profile of rank_0 written to "),
        ("--kernels ops --profile-step-start 3 --profile-step-end 9", "No profile: it was to go from --profile-step-"),
        ("--kernels ops --profile-step-start 7 --profile-step-end 9", "start 7 to 9, and training went from 0 to 3"),
    ],
)
def test_a_run_says_whether_there_is_a_profile(flags, wanted, tmp_path):
    """--profile logs where the profile is written, or that its steps were not trained and there is none."""
    (said,) = run(1, messages, f"{BATCHES} --train-iters 3 --profile --profile-save-path {tmp_path} {flags}")[0]
    assert wanted in said
    assert ("written" in said) == bool(list(tmp_path.rglob("trace_view.json")))


def loop(backend, flags: str) -> None:
    """Steps 1 to 4 of a script's loop with PynativeProfiler, each with two matrix products."""
    import mindspore as ms

    config = config_of(f"{BATCHES} {flags}", 1)
    with job(backend, config):
        profiler = profile.PynativeProfiler(config.training_config)
        matrix = ms.Tensor(np.ones((8, 8), np.float32))
        for step in range(1, 5):
            profiler.step_begin(step)
            ms.ops.matmul(ms.ops.matmul(matrix, matrix), matrix).asnumpy()
            profiler.step_end(step)


@pytest.mark.parametrize("flags, products", [("--profile", 4), ("--profile --profile-ranks 1", 0), ("", 0)])
def test_a_loop_of_ones_own_records_its_steps(flags, products, tmp_path):
    """PynativeProfiler in a script's loop records --profile-step-start to -end by the loop's numbers, if its rank is
    asked for."""
    run(1, loop, f"{flags} --profile-step-start 2 --profile-step-end 3 --profile-save-path {tmp_path} --kernels ops")
    assert sum(operators(tmp_path).values()) == products


def given(monkeypatch, **options) -> dict:
    """The arguments with which our profile calls MindSpore's profiler on an Ascend, for these options."""
    seen = {}
    profiler = profile.ms.profiler
    monkeypatch.setattr(profile.ms, "get_context", lambda name: "Ascend")
    monkeypatch.setattr(
        profiler, "profile", lambda experimental_config, **rest: seen.update(experimental_config, **rest)
    )
    monkeypatch.setattr(profiler, "_ExperimentalConfig", dict)
    monkeypatch.setattr(profiler, "tensorboard_trace_handler", lambda path, analyse_flag: (path, analyse_flag))
    profile.Recording(ProfilerConfig(**options))._new_profiler()
    return seen


@pytest.mark.parametrize(
    "option, value, argument",
    [
        ("profile_save_path", "elsewhere", "on_trace_ready"),
        ("profile_level", "level2", "profiler_level"),
        ("profile_with_stack", True, "with_stack"),
        ("profile_with_cpu", True, "activities"),
        ("profile_record_shapes", True, "record_shapes"),
        ("profile_memory", True, "profile_memory"),
        ("profile_parallel_strategy", True, "parallel_strategy"),
        ("profile_aicore_metrics", 3, "aic_metrics"),
        ("profile_l2_cache", True, "l2_cache"),
        ("profile_hbm_ddr", True, "hbm_ddr"),
        ("profile_pcie", True, "pcie"),
        ("profile_data_process", True, "data_process"),
        ("profile_data_simplification", True, "data_simplification"),
        ("profile_offline_analyse", True, "on_trace_ready"),
    ],
)
def test_each_option_reaches_the_profiler(option, value, argument, monkeypatch):
    """Each --profile option changes its one argument of MindSpore's profiler and no other."""
    monkeypatch.setattr(profile.parallel_state, "get_global_rank", lambda: 0)
    plain, changed = given(monkeypatch), given(monkeypatch, **{option: value})
    assert [name for name in plain if plain[name] != changed[name]] == [argument]


def once_read(backend, flags: str) -> None:
    """Train, beginning steps when the dynamic profiler's own process, which looks every two seconds, has read
    its file."""
    make = profile._monitor

    def ready(config: ProfilerConfig):
        monitor, end = make(config), time.monotonic() + 120
        while not monitor._get_prof_args() and time.monotonic() < end:
            time.sleep(0.05)
        return monitor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "_monitor", ready)
        pretrain_tiny(backend, flags)


def test_a_directory_says_it_while_training_runs(tmp_path):
    """--profile-dynamic-profiler-config-path: a file there that asks for step 8 gives a trace of matrix products."""
    config, out = tmp_path / "config", tmp_path / "out"
    config.mkdir()
    (config / "profiler_config.json").write_text(json.dumps({**DYNAMIC, "prof_path": str(out)}))
    where = f"--profile-save-path {out} --profile-dynamic-profiler-config-path {config}"
    run(1, once_read, f"{BATCHES} --train-iters 9 --kernels ops --profile {where}")
    assert sum(operators(out).values()) > 10
