"""Train a small model under any layout, and compare with one process: losses, every gradient, weights."""

from collections.abc import Callable
from functools import cache

import numpy as np

from tests.support.distributed import run
from tests.support.engine import config_of, job


class Rows:
    """Random token rows, a third of which are masked out, more in some than in others."""

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


def train(backend, flags: str, model: dict | None = None, dataset: Rows | None = None, **arguments) -> tuple:
    """(losses, gradient norms, gradients of step 1, final weights); the last two on rank 0 only.

    `model` are more arguments of GPTModel, `dataset` is trained on instead of Rows, `arguments` are more of pretrain.
    """
    from pynative.checkpointing import gather_weights
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)

    class Recorder(Callback):
        def on_train_begin(self, state):
            self.losses, self.norms, self.gradients = [], [], None

        def on_gradients(self, state, gradient_scale):
            if state.iteration == 0:
                gradients = gather_weights(state.model, of=lambda parameter: parameter.main_grad)
                self.gradients = gradients and {name: g * gradient_scale for name, g in gradients.items()}

        def on_step_end(self, state):
            self.losses.append(state.result.loss)
            self.norms.append(state.result.gradient_norm)

    recorder = Recorder()
    with job(backend, config):
        state = pretrain(
            lambda samples: (dataset or Rows(), None, None),
            lambda **stage: GPTModel(config.model_config, **stage, **(model or {})),
            all_config=config,
            callbacks=[recorder],
            **arguments,
        )
        return recorder.losses, recorder.norms, recorder.gradients, gather_weights(state.model)


@cache
def reference(flags: str, how: Callable = train) -> tuple:
    """One process's run, once a session."""
    return run(1, how, flags)[0]


def check_layout(flags: str, world: int, layout: str, backend: str = "shared_memory", how: Callable = train) -> None:
    """The run of `flags` on `world` ranks under the flags of a layout is one process's: losses, norms, gradients.

    Gradients are compared for each parameter, to 1e-5 of its largest entry. `how` is `train`, or calls it.
    """
    results = run(world, how, f"{flags} {layout}", backend=backend)
    losses, norms, gradients, weights = reference(flags, how)
    assert all(result[:2] == results[0][:2] for result in results), "ranks report different figures"
    np.testing.assert_allclose(results[0][0], losses, rtol=1e-5)
    np.testing.assert_allclose(results[0][1], norms, rtol=1e-4)
    assert set(results[0][2]) == set(gradients) and set(results[0][3]) == set(weights)
    wrong = {
        name: error for name, gradient in gradients.items() if (error := _error(results[0][2][name], gradient)) > 1
    }
    assert not wrong, f"gradients off, in units of the tolerance: {wrong}"
    for name, weight in weights.items():
        assert np.abs(results[0][3][name] - weight).max() < 2e-3, name


def _error(gradient: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, 1 being what is tolerated."""
    tolerated = 1e-5 * max(np.abs(expected).max(), 1e-6) + 1e-9
    return float(np.abs(gradient - expected).max() / tolerated)
