"""`plan --calibrate` writes a device that plans can be made on."""

from __future__ import annotations

import itertools

from mapping.plan import plan_of
from pynative.calibrate.__main__ import main
from tests.parallel_core.planner.test_search import SMALL


def test_a_measured_machine_is_a_device(tmp_path, capsys, monkeypatch):
    """The file has rates that a machine can have and times of five kinds of messages that grow with size; a plan on it
    is slower than on an A100."""
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


def test_a_process_that_takes_too_long_is_an_error_line(tmp_path, capsys, monkeypatch):
    """A process that has not measured in time ends in a line with the limit and exit code 1, and no file is written."""
    monkeypatch.setattr("pynative.calibrate.__main__.SECONDS", 0)
    path = tmp_path / "cpu.yaml"
    assert main([str(path)]) == 1 and not path.exists()
    assert "takes longer than 0 s" in capsys.readouterr().err


def test_a_name_that_is_no_file_is_refused(capsys):
    """`--calibrate cpu.txt`: exit code 2, since the file must end in .yaml, before anything is measured."""
    assert main(["cpu.txt"]) == 2 and "ends in .yaml" in capsys.readouterr().err
