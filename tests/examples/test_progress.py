"""A launched training's output: on a terminal its steps are one line that updates, elsewhere the lines as they were."""

import json
import os
import subprocess
import sys

import pytest

from pynative.startup.launch import free_port
from tests.support.assets import ROOT
from tests.support.run_sequence import tree
from tests.support.terminal import run_on_terminal, screen
from tests.support.warm import programs_first

EXAMPLE = ROOT / "examples" / "gpt"
STEPS = [
    f"INFO - Epoch: 0, Step: {step}, Loss: {9 - step:.16f}, Finite_grads: True, Loss_scale: 1.0, "
    f"Learning_rate: 0.0010000000000000, Grad_norm: 1.500000, Tokens/s: 12345.6, TFLOP/s: 0.0123, Memory: 300 MB, "
    f"ETA: 00:00:{4 - step:02d}, Time: 812.30 ms"
    for step in (1, 2, 3, 4)
]
SMALL = "--num-layers 1 --hidden-size 32 --train-iters 4 --seq-length 64 --global-batch-size 8 --lr-warmup-iters 0"


@pytest.fixture
def progress(tmp_path):
    """A function (lines, more flags, columns): exit code and the terminal's screen after `launch` of an msrun that
    prints these lines and ends with code 3."""

    def run(lines: list[str], *more: str, columns: int = 120) -> tuple[int, list[str]]:
        (tmp_path / "x.py").touch()
        (tmp_path / "msrun").write_text(f"#!{sys.executable}\nprint({chr(10).join(lines)!r}); raise SystemExit(3)")
        (tmp_path / "msrun").chmod(0o755)
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "mapping.launch", "msrun", "x.py", *more]
        code, run.written = run_on_terminal(command, columns, env=environment, cwd=tmp_path)
        return code, screen(run.written)

    return run


def test_steps_share_a_line_and_the_rest_stays_above(progress):
    """Lines of steps become one progress line with a bar, other output stays above it; the exit code is msrun's."""
    lines = [*STEPS[:2], "INFO - Evaluation: Step: 2, Loss: 7.0", *STEPS[2:]]
    code, shown = progress(lines, "--train-iters", "9", "--train-iters=8")
    bar = "[############............] step 4/8  loss 5.0000  12,346 tokens/s  ETA 00:00:00"
    assert (code, shown) == (3, ["INFO - Evaluation: Step: 2, Loss: 7.0", bar, ""])


@pytest.mark.parametrize(
    ("columns", "line"), [(120, "step 4  loss 5.0000  12,346 tokens/s  ETA 00:00:00"), (12, "step 4  los")]
)
def test_without_a_number_of_steps_and_on_a_narrow_terminal(progress, columns, line):
    """No --train-iters: no bar. 12 columns: the line is cut, as a wrapped one cannot be cleared."""
    assert progress(STEPS, columns=columns)[1] == [line, ""]


def test_colours_are_a_terminals_unless_somebody_does_not_want_them(progress, monkeypatch):
    """On a terminal the progress line is coloured; with NO_COLOR (no-color.org) its text is the same without
    colours."""
    _, shown = progress(STEPS)
    assert "\x1b[32m" in progress.written
    monkeypatch.setenv("NO_COLOR", "1")
    assert progress(STEPS)[1] == shown and "\x1b[32m" not in progress.written


def demonstration(tmp_path) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the README's second command with a model that trains for a few seconds."""
    command = ["bash", str(EXAMPLE / "pretrain_gpt.sh"), *SMALL.split()]
    corpus = tmp_path / "text"
    corpus.mkdir()
    (corpus / "a.py").write_text((EXAMPLE / "prepare_data.py").read_text() * 20)
    beside_python = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "OUTPUT": str(tmp_path / "out")}
    return command, os.environ | beside_python | {"CORPUS": str(corpus), "NPROC": "1", "MASTER_PORT": str(free_port())}


def check_results(tmp_path) -> None:
    """Check that metrics.jsonl and worker 0's log have all four steps, and that loss.png is written."""
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert (tmp_path / "out" / "msrun_log" / "worker_0.log").read_text().count("INFO - Epoch") == 4
    assert (tmp_path / "out" / "loss.png").stat().st_size > 1000


def test_the_demonstration_on_a_terminal(tmp_path):
    """The README's command shows one progress line with the last step's figures, then the plot and the model's text."""
    command, environment = demonstration(tmp_path)
    code, written = run_on_terminal(command, env=environment)
    shown = screen(written)
    assert code == 0, written[-5000:]
    assert not [line for line in shown if line.startswith("INFO - Epoch")]
    (bar,) = [line for line in shown if "tokens/s" in line]
    assert bar.startswith("[########################] step 4/4  loss ")
    assert [line for line in shown if line.startswith("Plot: ")]
    check_results(tmp_path)


def test_the_demonstration_elsewhere(tmp_path):
    """Without a terminal the README's command prints a line a step and no control characters; a second run into the
    same folder ends at once with code 2 and the ways out."""
    command, environment = demonstration(tmp_path)
    environment["PATH"] = programs_first()["PATH"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert done.stdout.count("INFO - Epoch") == 4 and "\x1b" not in done.stdout
    check_results(tmp_path)
    before = tree(tmp_path)
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert again.returncode == 2 and again.stdout == "" and tree(tmp_path) == before
    assert again.stderr.startswith(f"error: {tmp_path / 'out'} has iteration 4 of an earlier run: start with OUTPUT=")
    assert f"--load {tmp_path / 'out'} to go on, or --overwrite-save" in again.stderr
