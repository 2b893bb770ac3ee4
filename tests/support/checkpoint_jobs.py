"""Training runs inside the ranks of a test's pool, with and without checkpoints, and their outcomes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.gathering import gather_copies, gather_optimizer_state

BASE = f"{TINY} --global-batch-size 4 --log-interval 100 --save-interval 100"
"""Flags of all runs. A step has as many samples for one replica as for two."""
ENDLESS = BASE.replace("--train-iters 2", "")
"""BASE without the number of steps."""

KINDS = {
    "float32": "",
    "bf16 distributed optimizer": "--bf16 --use-distributed-optimizer",
    "ZeRO 3": "--zero-stage 3",
    "experts ep2": "--num-experts 4 --moe-token-dispatcher-type alltoall --expert-model-parallel-size 2",
    "fp16 with scaler": "--fp16 --initial-loss-scale 65536 --loss-scale-window 3",
    "async": "--async-save --use-distributed-optimizer",
}
"""Name of a kind of state -> flags, for two ranks."""


@dataclass
class Outcome:
    """A rank's outcome of a run: losses of each step and the state at its end."""

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    """The loss scale of each step."""
    weights: dict[str, np.ndarray] | None = None
    """Weights as whole arrays by global name; None but on rank 0."""
    moments: dict[str, np.ndarray] | None = None
    """Optimizer states as whole arrays by "<state>.<global name>"; None but on rank 0."""
    steps: int = 0
    scheduler: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    consumed_samples: int = 0
    seed: int = 0
    seen: "Outcome | None" = None
    """The outcome as it was at iteration `look_at`, if that was asked for, without losses."""


class Rows:
    """64 samples of 16 random tokens, the same in every run."""

    def __init__(self) -> None:
        self.tokens = np.random.default_rng(0).integers(0, 60, (64, 17)).astype(np.int32)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        return {
            "tokens": self.tokens[row, :-1],
            "labels": self.tokens[row, 1:],
            "position_ids": np.arange(16, dtype=np.int32),
            "loss_mask": np.ones(16, np.float32),
        }


def train(backend, flags: str, steps: bool = True, base: str = BASE, look_at: int | None = None) -> Outcome:
    """Train with `base` and these flags (a later flag wins), or with steps=False only load; this rank's outcome, with
    `seen` when `look_at` iterations were done."""
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{base} {flags}", backend.world_size)
    outcome = Outcome()

    class Recorder(Callback):
        def on_train_begin(self, state) -> None:
            state.should_stop = not steps
            self.look(state)

        def look(self, state) -> None:
            if state.iteration == look_at:
                state.step_cell.buffers.finish_param_sync()
                outcome.seen = Outcome()
                _report(state, outcome.seen)

        def on_step_end(self, state) -> None:
            self.look(state)
            outcome.losses.append(state.result.loss)
            outcome.scales.append(state.result.loss_scale)

    with job(backend, config):
        state = pretrain(
            lambda samples: (Rows(), None, None),
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
            callbacks=[Recorder()],
        )
        _report(state, outcome)
    return outcome


def _report(state, outcome: Outcome) -> None:
    from pynative.tensor_parallel.random import get_rng_tracer

    optimizer = state.step_cell.optimizer
    outcome.weights = gather_copies(state.model)
    moments = gather_optimizer_state(state)
    outcome.moments = moments and {name: values.copy() for name, values in moments.items()}
    outcome.steps, outcome.scheduler = optimizer.steps, state.step_cell.scheduler.state_dict()
    outcome.iteration, outcome.consumed_samples = state.iteration, state.consumed_samples
    outcome.seed = get_rng_tracer().seed


def assert_same(ours: Outcome, theirs: Outcome) -> None:
    """Assert that weights, states, step count, schedule, iteration, samples and seed are equal to the bit."""
    assert ours.weights.keys() == theirs.weights.keys() and ours.moments.keys() == theirs.moments.keys()
    for name, values in (ours.weights | ours.moments).items():
        np.testing.assert_array_equal(values, (theirs.weights | theirs.moments)[name], err_msg=name)
    for name in ("steps", "scheduler", "iteration", "consumed_samples", "seed"):
        assert getattr(ours, name) == getattr(theirs, name), name


def train_on(world: int, flags: str, steps: bool = True) -> Outcome:
    """Rank 0's outcome of a run on so many ranks."""
    return run(world, train, flags, steps)[0]


def check_taken_over(saving: tuple[int, str], loading: Iterable[tuple[int, str]], flags: str, folder: Path) -> Outcome:
    """Check that a checkpoint saved at one layout (ranks, flags) is loaded to the bit at the others; the saving run's
    outcome on rank 0."""
    world, layout = saving
    before = train_on(world, f"{flags} --save {folder} {layout}")
    for world, layout in loading:
        assert_same(train_on(world, f"{flags} --load {folder} {layout}", steps=False), before)
    return before


def layout_flags(tensor: int, pipeline: int) -> str:
    """Flags of this tensor-parallel and this pipeline-parallel size."""
    return f"--tensor-model-parallel-size {tensor} --pipeline-model-parallel-size {pipeline}"


def saved(directory: Path, name: str) -> np.ndarray:
    """A whole tensor of the latest checkpoint, read by its manifest and files without the project's reader."""
    from parallel_core.checkpoint import commit
    from parallel_core.checkpoint.reader import CheckpointReader
    from parallel_core.sharding import ShardSpec
    from tests.support.checkpoint_writing import whole

    reader = CheckpointReader(commit.find(directory))
    return whole(reader, ShardSpec(name=name, shape=reader.manifest.tensors[name].shape))
