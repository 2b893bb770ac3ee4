"""One short training of given flags in processes of its own, beside its plan: the common part of `planner.py` and
`suggested.py`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RESULT = "RESULT "

Found = dict[str, list[float]]
"""Quantity -> predicted, measured: seconds of a step and the bubble's share (the median of the steps from the third
on), bytes, and the seconds by part."""


def calibrated(folder: str) -> str:
    """A device file of this machine."""
    path = f"{folder}/cpu.yaml"
    command = [sys.executable, "-m", "mapping", "plan", "--calibrate", path]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return path


def measured(ranks: int, flags: Sequence[str]) -> list[Found]:
    """Train with these of Megatron's flags; what each rank finds. Raises RuntimeError if one fails."""
    common = os.environ | {"RANK_SIZE": str(ranks), "MS_SCHED_PORT": f"planned-{os.getpid()}", "GLOG_v": "3"}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            __file__,
            *flags,
            "--trace",
            "--profile-step-start",
            "2",
            "--profile-step-end",
            "1000",
        ]
        started = [
            subprocess.Popen(
                command, cwd=folder, text=True, stdout=subprocess.PIPE,
                env=common | {"RANK_ID": str(rank), "PYTHONPATH": str(ROOT)},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in started]
        lines = [line for text in said for line in text.splitlines() if line.startswith(RESULT)]
        if len(lines) < ranks:
            raise RuntimeError(f"{' '.join(flags)}: {said}")
        seconds = seconds_of(Path(folder, "output"))
    return [seconds[rank] | json.loads(line.removeprefix(RESULT)) for rank, line in enumerate(lines)]


def seconds_of(folder: Path) -> list[Found]:
    """Seconds that each rank of a recorded run took, beside the plan."""
    from parallel_core.planner import Plan
    from parallel_core.planner.beside import measured_seconds
    from parallel_core.planner.refine import read_run, stage_of

    run = read_run(folder)
    plan, rows = Plan.of_run(run.config), dict[int, list[dict[str, float]]]()
    for (rank, _), spans in run.steps.items():
        rows.setdefault(rank, []).append(measured_seconds(spans, plan.placement.topology))
    return [_beside(plan.step.of_stage(stage_of(plan, rank)), rows[rank]) for rank in sorted(rows)]


def _beside(predicted: Mapping[str, float], steps: Sequence[Mapping[str, float]]) -> Found:
    took = {part: median(step[part] for step in steps) for part in steps[0]}
    bubble = median(step["bubble"] / sum(step.values()) for step in steps)
    total = sum(predicted.values())
    parts = {part: [predicted.get(part, 0.0), seconds] for part, seconds in took.items()}
    return {
        "seconds": [total, median(sum(step.values()) for step in steps)],
        "bubble": [predicted["bubble"] / total, bubble],
        **{f"{part}, seconds": both for part, both in parts.items() if any(both)},
    }


def train(flags: Sequence[str]) -> None:
    """As one of the ranks: train, and print the memory that was predicted and measured."""
    from mapping import init_configs_from_args, initialize_megatron
    from pynative.calibrate.training import RandomTokens
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = init_configs_from_args(initialize_megatron(argv=[*flags]))
    model, steps = config.model_config, config.training_config.training_iters
    assert isinstance(model.vocab_size, int) and steps
    rows = RandomTokens(model.vocab_size, model.seq_length, steps * config.batch_sizes.final)

    class Meter(Callback):
        def on_train_end(self, state: Any) -> None:
            memory = state.comparison.memory
            found = {"memory": [memory.predicted, memory.measured]}
            found["activations"] = [memory.rows[-1].predicted, memory.rows[-1].measured]
            print(RESULT + json.dumps(found), flush=True)

    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(config.model_config, **where),
        all_config=config,
        callbacks=[Meter()],
    )


if __name__ == "__main__":
    train(sys.argv[1:])
