"""`plan --calibrate` writes a device that plans can be made on."""

from __future__ import annotations

import itertools

import pytest

from mapping.plan import plan_of
from parallel_core.operations import ATTENTION, ATTENTION_GRADIENT
from pynative.calibrate import rates
from pynative.calibrate.__main__ import main
from tests.parallel_core.planner.test_search import SMALL


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
    assert here.step.total > a100.step.total
    messages = here.device.messages
    assert set(messages) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}
    for points in messages.values():
        assert len(points) == 4 and all(one[1] <= other[1] for one, other in itertools.pairwise(points))
    by_size = here.device.by_size
    for named in ("norm", "activation", "embedding", "loss"):
        assert {named, f"{named} gradient"} <= set(by_size)
    assert all(multiple >= 1 for points in by_size.values() for _, multiple in points)
    assert set(here.device.launch_flops) == {ATTENTION, ATTENTION_GRADIENT}


def test_a_disturbed_size_changes_a_table_little():
    """Values of the form a + b / size are kept as they are; one that a busy machine made twice as large moves the
    smoothed ones by less than a third."""
    sizes = (64, 128, 256, 512, 1024, 2048)
    values = [1.0 + 90 / size for size in sizes]
    assert rates._smooth(sizes, values) == pytest.approx(values)
    disturbed = rates._smooth(sizes, [*values[:3], 2 * values[3], *values[4:]])
    assert disturbed == pytest.approx(values, rel=1 / 3) and disturbed[3] < 1.3 * values[3]


@pytest.mark.parametrize("values", [(9.0, 4.0, 0.1), (1.0, 2.0, 9.0), (1.0, 1e-3, 1.0)])
def test_no_smoothed_value_is_below_zero(values):
    """Values so disturbed that a straight fit would have a part below 0 give a table of values above 0."""
    assert all(value > 0 for value in rates._smooth((64, 128, 2048), values))


def test_disturbed_times_of_attention_make_a_table():
    """A machine so busy that many heads took less time than few gives values above 0 all the same."""
    keys = itertools.product(rates.LAUNCHES_OF, rates.LENGTHS, (rates.FEW, rates.MANY))
    found = rates._attention_table({key: 1e-3 if key[2] == rates.FEW else 1e-4 for key in keys})
    assert found["seconds"] > 0 and all(flops >= 0 for flops in found["launch_flops"].values())
    assert all(value > 0 for points in found["by_size"].values() for _, value in points)


def test_attention_is_told_apart_by_calls_and_heads():
    """From times of a call of 0.5 ms and of FLOPs of 1e-11 s (twice that in the gradient, whose call takes 0.8 ms) the
    table has one multiple for each pass, and a launch's FLOPs, of which the gradient has two launches."""
    of_flop = {ATTENTION: 1e-11, ATTENTION_GRADIENT: 2e-11}
    call = {ATTENTION: 5e-4, ATTENTION_GRADIENT: 8e-4}
    seconds = {
        (name, length, heads): call[name] + heads * of_flop[name] * rates._flops_of_head(name, length)
        for name, length, heads in itertools.product(of_flop, rates.LENGTHS, (rates.FEW, rates.MANY))
    }
    found = rates._attention_table(seconds)
    assert found["seconds"] == pytest.approx(1e-11)
    assert [value for _, value in found["by_size"][ATTENTION]] == pytest.approx([1.0] * 5)
    assert [value for _, value in found["by_size"][ATTENTION_GRADIENT]] == pytest.approx([2.0] * 5)
    assert found["launch_flops"] == pytest.approx({ATTENTION: 5e-4 / 1e-11, ATTENTION_GRADIENT: 4e-4 / 1e-11})


def test_a_process_that_takes_too_long_is_an_error_line(tmp_path, capsys, monkeypatch):
    """A process that has not measured in time ends in a line with the limit and exit code 1, and no file is written."""
    monkeypatch.setattr("pynative.calibrate.__main__.SECONDS", 0)
    path = tmp_path / "cpu.yaml"
    assert main([str(path)]) == 1 and not path.exists()
    assert "takes longer than 0 s" in capsys.readouterr().err


def test_a_name_that_is_no_file_is_refused(capsys):
    """`--calibrate cpu.txt`: exit code 2, since the file must end in .yaml, before anything is measured."""
    assert main(["cpu.txt"]) == 2 and "ends in .yaml" in capsys.readouterr().err
