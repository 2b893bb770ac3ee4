"""`plan --calibrate` writes a device that plans can be made on."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from mapping.plan import plan_of
from parallel_core.operations import ATTENTION, ATTENTION_GRADIENT, attention
from pynative.calibrate import rates, tables
from pynative.calibrate.__main__ import main
from tests.parallel_core.planner.test_search import SMALL
from tests.parallel_core.planner.test_speed import plan_on


def test_a_measured_machine_is_a_device(tmp_path, capsys, monkeypatch):
    """The file has rates that a machine can have and times of five kinds of messages that grow with size; a plan on it
    is slower than on an A100."""
    monkeypatch.setattr("pynative.calibrate.__main__.MEASUREMENTS", 1)
    monkeypatch.setattr("pynative.calibrate.__main__.STEPS", 3)
    monkeypatch.setattr("pynative.calibrate.__main__.ROUNDS", 1)
    path = tmp_path / "cpu.yaml"
    assert main([str(path)]) == 0
    assert "GFLOP/s" in capsys.readouterr().out
    words = [word for word in SMALL if word != "--bf16"]
    here, a100 = plan_of(words, 4, str(path)), plan_of(words, 4, "A100")
    assert 1e8 < here.device.peak("float32") < 1e14 and 1e7 < here.device.bandwidth < 1e13
    assert 0 < here.device.calibration.launch < 0.1
    assert 0 <= here.device.calibration.waking < 1 and 0 <= here.device.calibration.waking_most < 0.1
    assert here.step.total > a100.step.total
    messages = here.device.messages
    assert set(messages) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}
    for points in messages.values():
        assert len(points) == 4 and all(one[1] <= other[1] for one, other in itertools.pairwise(points))
    by_size = here.device.by_size
    for named in ("norm", "activation", "embedding", "loss"):
        assert {named, f"{named} gradient"} <= set(by_size)
    sweeps = [points[-1][1] for name, points in by_size.items() if name.partition(" ")[0] in SWEEPS]
    assert len(sweeps) == 9 and median(sweeps) == pytest.approx(1)
    assert set(here.device.launch_flops) == {ATTENTION, ATTENTION_GRADIENT}


SWEEPS = ("norm", "activation", "residual", "embedding", "loss")
SIZES = (64, 128, 256, 512, 1024, 2048)


def test_a_disturbed_size_changes_a_table_little():
    """Calls that take a part for themselves and one for each size keep both, without a launch that is counted
    elsewhere; one call that a busy machine made twice as long moves the smoothed seconds by less than a third."""
    values = [90.0 + size for size in SIZES]
    assert tables.smooth(SIZES, values) == pytest.approx(
        [value / size for value, size in zip(values, SIZES, strict=True)]
    )
    assert tables.smooth(SIZES, values, 40.0) == pytest.approx([1 + 50 / size for size in SIZES])
    assert tables.smooth(SIZES, values, 200.0) == pytest.approx([1.0] * len(SIZES))
    disturbed = tables.smooth(SIZES, [*values[:3], 2 * values[3], *values[4:]])
    assert disturbed == pytest.approx(tables.smooth(SIZES, values), rel=1 / 3)
    assert disturbed[3] < 1.3 * tables.smooth(SIZES, values)[3]


def test_operands_beyond_the_caches_take_longer():
    """Seconds for one of a size that rise with the size, from 0.3 within a cache to 1 outside of it, are smoothed to
    ones that rise as far, within a third."""
    of_one = (0.3, 0.3, 0.3, 1.0, 1.0, 1.0)
    found = tables.smooth(SIZES, [value * size for value, size in zip(of_one, SIZES, strict=True)])
    assert (
        found == sorted(found)
        and found[0] == pytest.approx(0.3, rel=1 / 3)
        and found[-1] == pytest.approx(1, rel=1 / 3)
    )


@pytest.mark.parametrize("values", [(9.0, 4.0, 0.1), (1.0, 2.0, 9.0), (1.0, 1e-3, 1.0), (3.0, 2.0, 1.0)])
def test_no_factor_is_below_zero(values):
    """Seconds so disturbed that larger sizes take less time give no factor below 0, and smoothed seconds above it."""
    sizes = (64.0, 128.0, 2048.0)
    factors = tables.factors_of([[1.0, size] for size in sizes], values)
    assert all(factor >= 0 for factor in factors) and any(factors)
    assert all(value > 0 for value in tables.smooth(sizes, values))


PEAK, LAUNCH = 1e11, 2e-5
OF_CALL = {ATTENTION: 5e-4, ATTENTION_GRADIENT: 8e-4}
OF_FLOP = {ATTENTION: 1e-11, ATTENTION_GRADIENT: 2e-11}


def times_of_attention() -> dict[tuple[str, int, int], float]:
    """Seconds of a call that takes OF_CALL and OF_FLOP for each FLOP of its heads."""
    return {
        (name, length, heads): OF_CALL[name] + heads * OF_FLOP[name] * tables.flops_of_head(name, length)
        for name, length, heads in itertools.product(OF_FLOP, tables.LENGTHS, (tables.FEW, tables.MANY))
    }


def test_disturbed_times_of_attention_make_a_table():
    """A machine so busy that many heads took less time than few gives values above 0 all the same."""
    found = tables.attention_table(
        {key: 1e-3 if key[2] == tables.FEW else 1e-4 for key in times_of_attention()}, LAUNCH, PEAK
    )
    assert found["share"] > 0 and all(flops >= 0 for flops in found["launch_flops"].values())
    assert all(value > 0 for points in found["by_size"].values() for _, value in points)


@pytest.mark.parametrize("times", [{}, {(ATTENTION, 128, tables.FEW): 1.3}, {(ATTENTION, 128, tables.MANY): 1.3}])
def test_attention_is_planned_as_it_was_measured(times):
    """A device of measured times plans them again, launches included: to 1e-9 undisturbed; where one of ten calls of a
    pass took 1.3 times as long, within 15%."""
    seconds = times_of_attention()
    measured = {key: each * times.get(key, 1.0) for key, each in seconds.items()}
    found = tables.attention_table(measured, LAUNCH, PEAK)
    assert planned(found, PEAK) == pytest.approx(seconds, rel=0.15 if times else 1e-9)


def planned(found: dict[str, Any], peak: float) -> dict[tuple[str, int, int], float]:
    """Seconds of the same calls on a device with attention's part of a file, launches included."""
    shares = replace(plan_on("CPU").device.calibration, attention=found["share"], launch=LAUNCH, launch_back=None)
    measured = {"by_size": found["by_size"], "launch_flops": found["launch_flops"]}
    speed = plan_on("CPU", peak_flops={"float32": peak}, calibration=shares, **measured).speed
    seconds = {}
    for name, length, heads in times_of_attention():
        one = attention(heads * tables.flops_of_head(ATTENTION, length), 0.0, 0.0, length)
        work = one.forward if name == ATTENTION else one.backward
        seconds[name, length, heads] = speed.seconds(one, work) + work.launches * LAUNCH
    return seconds


def test_attention_faster_than_the_peak_is_planned_as_it_was_measured():
    """The share of the peak is at most 1, and multiples and launches are those of that share."""
    found = tables.attention_table(times_of_attention(), LAUNCH, 1e9)
    assert found["share"] == pytest.approx(1) and max(value for _, value in found["by_size"][ATTENTION]) < 1
    assert planned(found, 1e9) == pytest.approx(times_of_attention(), rel=1e-9)


def test_sweeps_are_measured_by_the_bytes_and_launches_that_plans_count():
    """Bytes of each measured operator of 64 tokens, and launches of a call, are those of a plan with such layers."""
    flags = (
        "--num-layers 1 --hidden-size 512 --ffn-hidden-size 2048 --swiglu --normalization RMSNorm --seq-length 64 "
        "--max-position-embeddings 64 --micro-batch-size 1 --padded-vocab-size 4096"
    )
    (stage,) = plan_on("CPU", flags).stages
    found = [one for chunk in stage.chunks for one in chunk.operations(stage.micro_batch)]
    works = {work.sized: work for one in found for work in (one.forward, one.backward, one.weight) if work.sized}
    assert rates.sweeps([64]).keys() <= works.keys()
    assert all(work.launches == tables.LAUNCHES_OF.get(name, 1) for (name, _), work in works.items())


def test_seconds_lost_after_waits_are_those_of_the_first_products(monkeypatch):
    """Rows of products that take 2 and 3 ms longer right after sleeps of 20 and 80 ms, one of them much longer by
    chance: a tenth of the shorter sleep is lost, and at most 3 ms. Where they take no longer, nothing is."""
    lost, slept, rows = {0.0: 0.0, 0.02: 0.002, 0.08: 0.003}, [0.0], []

    def seconds(runs):
        rows.append(len(runs))
        took = 0.01 + lost[slept[0]] + (len(rows) == 4)
        slept[0] = 0.0
        return took

    monkeypatch.setattr(rates, "_seconds", seconds)
    monkeypatch.setattr(rates.time, "sleep", lambda pause: slept.__setitem__(0, pause))
    assert rates.after_waits(5) == pytest.approx({"waking": 0.1, "waking_most": 0.003})
    lost.update(dict.fromkeys(lost, 0.0))
    assert rates.after_waits(5) == {"waking": 0.0, "waking_most": 0.0}


def test_a_process_that_takes_too_long_is_an_error_line(tmp_path, capsys, monkeypatch):
    """A process that has not measured in time ends in a line with the limit and exit code 1, and no file is written."""
    monkeypatch.setattr("pynative.calibrate.__main__.SECONDS", 0)
    path = tmp_path / "cpu.yaml"
    assert main([str(path)]) == 1 and not path.exists()
    assert "takes longer than 0 s" in capsys.readouterr().err


def test_a_name_that_is_no_file_is_refused(capsys):
    """`--calibrate cpu.txt`: exit code 2, since the file must end in .yaml, before anything is measured."""
    assert main(["cpu.txt"]) == 2 and "ends in .yaml" in capsys.readouterr().err
