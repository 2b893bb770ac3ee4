"""Short trainings of given flags in processes of their own, one after the other, beside their plans: the common part
of `bubbles.py`, `planner.py` and `suggested.py`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel_core.planner import Device, Plan
from parallel_core.planner.recorded import Recorded, mean_seconds, read_run, stage_of

ROOT = Path(__file__).resolve().parents[1]
RESULT, LINES = "RESULT ", "lines.json"
RECORDED = ("--trace", "--profile-step-start", "2", "--profile-step-end", "1000")

Found = dict[str, list[float]]
"""Quantity -> [predicted, measured] of a rank. `seconds` of a step, `bubble` (its share of the step) and `<part>,
seconds` are measured as means of the recorded steps without the fastest and the slowest quarter; `memory` and
`activations` are peaks in bytes."""


def calibrated(folder: str) -> str:
    """Calibrate this machine's device; the path of its file in `folder`."""
    path = f"{folder}/cpu.yaml"
    command = [sys.executable, "-m", "mapping", "plan", "--calibrate", path]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return path


def measured(ranks: int, lines: Sequence[Sequence[str]]) -> list[list[Found]]:
    """Train with each line of Megatron's flags; for each line the figures of each rank. Raises RuntimeError if one
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        results = trained(ranks, lines, folder)
        seconds = [seconds_of(run_of(folder, number)) for number in range(len(lines))]
    return [
        [times | memory for times, memory in zip(*of_ranks, strict=True)]
        for of_ranks in zip(seconds, results, strict=True)
    ]


def trained(ranks: int, lines: Sequence[Sequence[str]], folder: str) -> list[list[Found]]:
    """Train with each line in a sub-folder of its number, recording all steps from the second on; for each line each
    rank's bytes, predicted and measured. Raises RuntimeError if a rank fails."""
    common = os.environ | {"RANK_SIZE": str(ranks), "MS_SCHED_PORT": f"planned-{os.getpid()}", "GLOG_v": "3"}
    for number in range(len(lines)):
        Path(folder, str(number)).mkdir()
    Path(folder, LINES).write_text(json.dumps([[*flags, *RECORDED] for flags in lines]))
    started, outputs = [], [Path(folder, f"rank{rank}.txt") for rank in range(ranks)]
    for rank, output in enumerate(outputs):  # files: a pipe that is full would stop its rank
        env = common | {"RANK_ID": str(rank), "PYTHONPATH": str(ROOT)}
        with output.open("w") as stdout:
            started.append(subprocess.Popen([sys.executable, __file__], cwd=folder, stdout=stdout, env=env))
    for process in started:
        process.wait()
    said = [output.read_text() for output in outputs]
    found = [[line.removeprefix(RESULT) for line in text.splitlines() if line.startswith(RESULT)] for text in said]
    if any(len(own) < len(lines) for own in found):
        raise RuntimeError(f"a rank has failed: {said}")
    return [[json.loads(line) for line in of_ranks] for of_ranks in zip(*found, strict=True)]


def run_of(folder: str | Path, number: int) -> Recorded:
    """The run of the line with this number that `trained` has left in a folder."""
    return read_run(Path(folder, str(number), "output"))


def seconds_of(run: Recorded, device: Device | None = None) -> list[Found]:
    """Each rank's times in a recorded run, predicted for a device (None: the one that the run's flags name) and
    measured."""
    plan = Plan(run.config, device) if device else Plan.of_run(run.config)
    took = mean_seconds(run, plan.placement.topology)
    return [_beside(plan.step.of_stage(stage_of(plan, rank)), seconds) for rank, seconds in took.items()]


def _beside(predicted: Mapping[str, float], took: Mapping[str, float]) -> Found:
    both = sum(predicted.values()), sum(took.values())
    parts = {part: [predicted.get(part, 0.0), seconds] for part, seconds in took.items()}
    bubble = [part / whole for part, whole in zip(parts["bubble"], both, strict=True)]
    named = {f"{part}, seconds": each for part, each in parts.items() if any(each)}
    return {"seconds": [*both], "bubble": bubble, **named}


def train(lines: Sequence[Sequence[str]]) -> None:
    """As one of the ranks: train with each line in its folder, and print the memory that was predicted and measured."""
    from mapping import init_configs_from_args, initialize_megatron
    from pynative.calibrate.training import connect_as

    folder = Path.cwd()
    for number, flags in enumerate(lines):
        os.chdir(folder / str(number))
        config = init_configs_from_args(initialize_megatron(argv=[*flags]))
        connect_as(config)
        _train(config)


def _train(config: Any) -> None:
    from pynative.calibrate.training import RandomTokens
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    model, steps = config.model_config, config.training_config.training_iters
    rows = RandomTokens(model.vocab_size, model.seq_length, steps * config.batch_sizes.final)

    class Meter(Callback):
        """Prints the bytes of a rank, predicted and measured, at the end."""

        def on_train_end(self, state: Any) -> None:
            memory = state.comparison.memory
            found = {"memory": [memory.predicted, memory.measured]}
            found["activations"] = [memory.rows[-1].predicted, memory.rows[-1].measured]
            print(RESULT + json.dumps(found), flush=True)

    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(model, **where),
        all_config=config,
        callbacks=[Meter()],
    )


if __name__ == "__main__":
    train(json.loads(Path(LINES).read_text()))
