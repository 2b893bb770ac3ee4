"""Train a small model under any layout, and compare with one process: losses, gradients, updates, optimizer's state."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from tests.support.distributed import run
from tests.support.engine import config_of, job
from tests.support.gathering import Arrays, digests, gather_copies, gather_optimizer_state

STEPS = "--train-iters 2 --adam-eps 1e-5"
"""The last update shows in weights and state alone, the one before it in the losses too. With Adam's usual epsilon a
gradient that is zero up to rounding (of keys' biases, 1e-9) becomes a step of full size, which no two layouts share."""

ONE_STEP = STEPS.replace("2", "1", 1)
"""Flags of one step in place of two, where a second step tests nothing else."""

LOSS, GRADIENT_NORM, GRADIENT, UPDATE, STATE = 1e-5, 1e-4, 1e-5, 1e-3, 1e-5
"""Tolerated relative differences. Measured: at most 1e-7, 2e-7, 7e-6, 3e-4 (in biases of keys) and 1e-6."""


class Rows:
    """Random token rows; a third of the tokens are masked out of the loss, in some rows more than in others."""

    def __init__(self) -> None:
        generator = np.random.default_rng(7)
        self.tokens = generator.integers(0, 60, (16, 17)).astype(np.int32)
        self.mask = (generator.random((16, 16)) < np.linspace(0.3, 1.0, 16)[:, None]).astype(np.float32)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        row = self.tokens[i]
        positions = np.arange(16, dtype=np.int32)
        return {"tokens": row[:-1], "labels": row[1:], "loss_mask": self.mask[i], "position_ids": positions}


class Trained(NamedTuple):
    """A rank's report of a run; arrays are whole, by global name, and on rank 0 only."""

    losses: list[float]
    gradient_norms: list[float]
    gradients: Arrays
    """Gradients of the first step, as the optimizer sees them."""
    initial: Arrays
    final: Arrays
    state: Arrays
    """Optimizer states as whole arrays by "<state>.<name>"."""
    digests: Mapping[str, str]
    """Digests of this rank's own shards, by name and by what they cover."""


def train(
    backend,
    flags: str,
    model: dict | None = None,
    dataset: Rows | None = None,
    build: Callable | None = None,
    has_data: Callable[[], bool] = lambda: True,
    loader: Callable | None = None,
    **arguments,
) -> Trained:
    """Train GPTModel, or the model that `build` makes of the same arguments, on Rows; this rank's report.

    model: more arguments of GPTModel. dataset: in place of Rows, on ranks where `has_data()`. loader: a function of the
    config that makes a loader within the job. arguments: more of pretrain.
    """
    from pynative.checkpointing import gather_gradients
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)

    class Recorder(Callback):
        def on_train_begin(self, state):
            self.losses, self.norms, self.gradients = [], [], None
            self.initial = gather_copies(state.model)

        def on_gradients(self, state, gradient_scale):
            if state.iteration == 0:
                gradients = gather_gradients(state.step_cell.buffers)
                self.gradients = gradients and {name: g * gradient_scale for name, g in gradients.items()}

        def on_step_end(self, state):
            self.losses.append(state.result.loss)
            self.norms.append(state.result.gradient_norm)

    recorder = Recorder()
    with job(backend, config):
        if loader is not None:
            arguments["train_data_loader"] = loader(config)
        state = pretrain(
            lambda samples: (dataset or Rows() if has_data() else None, None, None),
            lambda **stage: (build or GPTModel)(config.model_config, **stage, **(model or {})),
            all_config=config,
            callbacks=[recorder],
            **arguments,
        )
        return Trained(
            recorder.losses,
            recorder.norms,
            recorder.gradients,
            recorder.initial,
            gather_copies(state.model),
            gather_optimizer_state(state),
            digests(state),
        )


@cache
def reference(flags: str, how: Callable = train, steps: str = STEPS) -> Trained:
    """The report of the run of `flags` on one process, computed once a session."""
    return run(1, how, f"{flags} {steps}")[0]


def check_layout(flags: str, world: int, layout: str, how: Callable = train, steps: str = STEPS) -> None:
    """Assert that the run of `flags` on `world` ranks under a layout's flags is one process's; `how` is `train` or a
    function that calls it."""
    results = run(world, how, f"{flags} {layout} {steps}")
    wrong = differences(results, reference(" ".join(flags.split()), how, steps))
    assert not wrong, f"off, in units of what is tolerated: {wrong}"


def differences(results: Sequence[Trained], expected: Trained) -> dict[str, float]:
    """Differences between a job's ranks, or from one process, as multiples of the tolerance. Losses and gradient norms;
    each parameter's first gradient, relative to its largest entry; the sum of all updates of each parameter and each of
    its optimizer states, relative in the L2 norm."""
    found = results[0]
    errors = {f"rank {rank}": _unlike(result, results) for rank, result in enumerate(results)}
    errors |= _each_step("loss", found.losses, expected.losses, LOSS)
    errors |= _each_step("norm", found.gradient_norms, expected.gradient_norms, GRADIENT_NORM)
    errors |= _gradient_errors(found.gradients, expected.gradients)
    errors |= _each("initial", found.initial, expected.initial, _l2_error, np.finfo(np.float32).tiny)
    errors |= _each("update", _updates(found), _updates(expected), _l2_error, UPDATE)
    errors |= _each("state", found.state, expected.state, _l2_error, STATE)
    return {name: error for name, error in errors.items() if not error <= 1}


def _unlike(result: Trained, results: Sequence[Trained]) -> float:
    """Infinite if a rank reports other losses or norms than the first, or a replica of a shard with other bits than
    another rank's; else 0."""
    replicas = [other.digests for other in results]
    is_alike = result[:2] == results[0][:2] and all(
        other.get(shard, digest) == digest for other in replicas for shard, digest in result.digests.items()
    )
    return 0.0 if is_alike else float("inf")


def _each_step(kind: str, found: list[float], expected: list[float], tolerance: float) -> dict[str, float]:
    steps = enumerate(zip(found, expected, strict=True), start=1)
    return {f"{kind} {step}": abs(ours - theirs) / abs(theirs) / tolerance for step, (ours, theirs) in steps}


def _each(kind: str, found: Arrays, expected: Arrays, error: Callable, tolerance: float) -> dict[str, float]:
    assert found.keys() == expected.keys()
    return {f"{kind} {name}": error(found[name], expected[name]) / tolerance for name in expected}


def _updates(trained: Trained) -> Arrays:
    return {name: trained.final[name] - trained.initial[name] for name in trained.final}


def _gradient_errors(found: Arrays, expected: Arrays) -> dict[str, float]:
    """ "gradient <name>" -> largest difference, relative to the parameter's largest entry, as a multiple of the
    tolerance; 1e-9 is rounding.

    The bias of a key norm is measured by the query norm's: softmax does not see what is added to all keys, so that its
    gradient is the small rest of addends of that size, which cancel.
    """
    assert found.keys() == expected.keys()
    sizes = {name: expected[name.replace("k_layernorm.bias", "q_layernorm.bias")] for name in expected}
    return {
        f"gradient {name}": float(
            np.abs(found[name] - expected[name]).max() / (max(np.abs(size).max(), 1e-6) * GRADIENT + 1e-9)
        )
        for name, size in sizes.items()
    }


def _l2_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), np.finfo(np.float32).tiny))
