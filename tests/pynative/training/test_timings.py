"""Timers in the log and for writers, throughput in the log line, and --log-progress's file."""

import re
from pathlib import Path

import pytest

from tests.support.distributed import run
from tests.support.pretraining import BATCHES, listening, pretrain_tiny


def said(backend, flags: str, **arguments) -> tuple[list[str], dict[str, float]]:
    """(lines that this rank logs, figures and timings of its last step)."""
    with listening() as lines:
        state = pretrain_tiny(backend, f"{BATCHES} {flags}", **arguments)
    return lines, state.metrics | state.timings


def test_timers_are_printed_by_the_last_rank():
    """For each --timing-log-option the last rank alone prints: receives on both stages, and no forward longer than
    forward-backward."""
    pipeline = "--pipeline-model-parallel-size 2 --train-iters 2 --timing-log-level 2"
    for option, row in (("minmax", r"\((\d+\.\d\d), (\d+\.\d\d)\)"), ("max", r"(\d+\.\d\d)"), ("all", "")):
        first, last = run(2, said, f"{pipeline} --timing-log-option {option}")
        (text,) = [line for line in last[0] if "across ranks" in line][1:]
        assert not any("across ranks" in line for line in first[0])
        if option == "all":
            for name, rank in (("forward", 1), ("backward", 0)):
                assert re.search(rf"  {name}-recv:\n     rank  {rank}: \d", text)
        else:
            times = {name: float(time) for name, *_, time in re.findall(rf"(\S+) \.+: {row}", text)}
            assert times["forward-compute"] + times["backward-compute"] <= 2 * times["forward-backward"]
        assert last[1]["forward-compute-time"] == first[1]["forward-compute-time"] > 0


def test_level_0_times_nothing():
    """--timing-log-level 0 logs no timers across ranks; the step's time and throughput are figures all the same."""
    ((lines, figures),) = run(1, said, "--train-iters 2")
    assert not any("across ranks" in line for line in lines)
    assert figures["iteration-time"] == pytest.approx(figures["milliseconds"] / 1e3, rel=1e-6)
    assert set(figures) >= {"mfu", "tokens_per_second_per_device", "consumed_samples"}


def test_the_log_line_says_what_is_measured():
    """MFU is the share of --peak-tflops; steps whose loss is not finite are counted."""
    (lines, figures), _ = run(2, said, "--train-iters 1 --peak-tflops 0.001")
    (line,) = [line for line in lines if "Step: 1," in line]
    assert figures["mfu"] == pytest.approx(figures["tflops"] / 0.001)
    assert "Number of nan iterations: 0, Samples: 4, " in line and f"MFU: {figures['mfu']:.2%}" in line
    assert figures["tokens_per_second"] == pytest.approx(2 * figures["tokens_per_second_per_device"])


def test_progress_has_a_line_for_the_start_and_every_checkpoint(tmp_path):
    """progress.txt, written by both ways of saving and appended to by a second job."""
    for more in ("", f"--async-save --load {tmp_path}"):
        steps = f"--train-iters {4 if more else 2} --lr-decay-iters 4"
        run(1, said, f"{steps} --save {tmp_path} --save-interval 2 --log-progress {more}")
    lines = [line.split("\t") for line in Path(tmp_path, "progress.txt").read_text().splitlines()]
    assert [line[3:5] for line in lines] == [
        ["Starting job"],
        ["Saved checkpoint", "Iteration: 2"],
        ["Starting job"],
        ["Saving async checkpoint", "Iteration: 4"],
    ]


def test_a_writer_that_fails_ends_nothing(tmp_path):
    """TensorBoard's folder cannot be made: logged, and training goes on; a package that is not installed is logged
    before the first step."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    flags = f"--train-iters 2 --tensorboard-dir {blocked}/x --swanlab-project y"
    ((lines, figures),) = run(1, said, flags)
    missing = next(i for i, line in enumerate(lines) if "swanlab is not installed" in line)
    assert figures["step"] == 2 and missing < next(i for i, line in enumerate(lines) if "Step: 1," in line)
    assert any("nothing more is written there" in line and str(blocked) in line for line in lines)
