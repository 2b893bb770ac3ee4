"""One short training of given flags in processes of its own, beside its plan: the common part of `planner.py` and
`suggested.py`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RESULT = "RESULT "

Found = dict[str, list[float]]
"""Quantity -> [predicted, measured] of a rank: seconds of a step, the bubble's share and the seconds by part, of the
fastest step from the third on; and bytes of memory."""


def calibrated(folder: str) -> str:
    """Calibrate this machine's device; the path of its file in `folder`."""
    path = f"{folder}/cpu.yaml"
    command = [sys.executable, "-m", "mapping", "plan", "--calibrate", path]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return path


def measured(ranks: int, flags: Sequence[str]) -> list[Found]:
    """Train with these of Megatron's flags in `ranks` processes; each rank's figures. Raises RuntimeError if one
    fails."""
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
    """Each rank's figures of time, from the folder of a recorded run."""
    from parallel_core.planner import Plan
    from parallel_core.planner.beside import measured_seconds
    from parallel_core.planner.refine import fastest_step, read_run, stage_of

    run = read_run(folder)
    plan, fastest = Plan.of_run(run.config), fastest_step(run)
    took = {rank: measured_seconds(fastest[rank], plan.placement.topology) for rank in sorted(fastest)}
    return [_beside(plan.step.of_stage(stage_of(plan, rank)), seconds) for rank, seconds in took.items()]


def _beside(predicted: Mapping[str, float], took: Mapping[str, float]) -> Found:
    both = sum(predicted.values()), sum(took.values())
    parts = {part: [predicted.get(part, 0.0), seconds] for part, seconds in took.items()}
    bubble = [part / whole for part, whole in zip(parts["bubble"], both, strict=True)]
    named = {f"{part}, seconds": each for part, each in parts.items() if any(each)}
    return {"seconds": [*both], "bubble": bubble, **named}


def train(flags: Sequence[str]) -> None:
    """Train as one of the ranks, and print the memory that was predicted and measured."""
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
