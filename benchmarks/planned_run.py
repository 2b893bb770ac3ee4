"""One short training of given flags in processes of its own, with what its plan says beside it: the common part of
`planner.py` and `suggested.py`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RESULT = "RESULT "

Found = dict[str, list[float]]
"""Quantity -> predicted, measured: seconds of a step (the fastest after the second), the bubble's share, bytes, and
seconds of the second step by part."""


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
        started = [
            subprocess.Popen(
                [sys.executable, __file__, *flags], cwd=folder, text=True, stdout=subprocess.PIPE,
                env=common | {"RANK_ID": str(rank), "PYTHONPATH": str(ROOT)},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in started]
    lines = [line for text in said for line in text.splitlines() if line.startswith(RESULT)]
    if len(lines) < ranks:
        raise RuntimeError(f"{' '.join(flags)}: {said}")
    return [json.loads(line.removeprefix(RESULT)) for line in lines]


def train(flags: Sequence[str]) -> None:
    """As one of the ranks: train, and print what was predicted and measured."""
    from mapping import init_configs_from_args, initialize_megatron
    from pynative.calibrate.training import RandomTokens
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = init_configs_from_args(initialize_megatron(argv=[*flags]))
    model, steps = config.model_config, config.training_config.training_iters
    assert isinstance(model.vocab_size, int) and steps
    rows = RandomTokens(model.vocab_size, model.seq_length, steps * config.batch_sizes.final)
    seconds: list[float] = []

    class Meter(Callback):
        def on_step_end(self, state: Any) -> None:
            seconds.append(state.step_seconds)
            if state.iteration == steps:
                print(RESULT + json.dumps(found_in(state, min(seconds[2:]))), flush=True)

    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(config.model_config, **where),
        all_config=config,
        callbacks=[Meter()],
    )


def found_in(state: Any, fastest: float) -> Found:
    """Everything that the plan says, and what the run took."""
    times, memory = state.comparison.seconds, state.comparison.memory
    parts = {row.part: [row.predicted, row.measured] for row in times.rows}
    bubble = parts.get("bubble", [0.0, 0.0])
    return {
        "seconds": [state.plan.step.total, fastest],
        "bubble": [bubble[0] / times.predicted, bubble[1] / times.measured],
        "memory": [memory.predicted, memory.measured],
        "activations": [memory.rows[-1].predicted, memory.rows[-1].measured],
        **{f"{part}, second step": both for part, both in parts.items()},
    }


if __name__ == "__main__":
    train(sys.argv[1:])
