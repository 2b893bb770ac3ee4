"""Every model family gives the same losses, gradients and weights however the work is split."""

from itertools import pairwise

import numpy as np
import pytest

from tests.distributed import run
from tests.engine import TINY, config_of, job

FAMILIES = {
    "gpt": "--untie-embeddings-and-output-weights",
    "gpt tied, dropout": "--attention-dropout 0.2 --hidden-dropout 0.1",
    "gpt erf gelu": "--no-bias-gelu-fusion",
    "llama": "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
    "rope interleaved, scaled": "--position-embedding-type rope --rotary-interleaved "
    "--rotary-seq-len-interpolation-factor 2 --rotary-base 500000",
    "head norms, part of the head turns": "--position-embedding-type rope --rotary-percent 0.5 --qk-layernorm "
    "--add-qkv-bias --disable-bias-linear --swiglu",
    "squared relu": "--squared-relu --disable-bias-linear",
    "sandwich norm": "--use-sandwich-norm --attn-post-norm-scale 0.5 --ffn-post-norm-scale 0.25 "
    "--normalization RMSNorm",
    "no positions, residual after norm": "--position-embedding-type none --apply-residual-connection-post-layernorm",
    "one-centered norm": "--apply-layernorm-1p",
    "per token loss": "--calculate-per-token-loss",
    "sgd": "--optimizer sgd --weight-decay 0.1",
}
LAYOUTS = {
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "dp2": (2, ""),
    "tp4": (4, "--tensor-model-parallel-size 4"),
    "tp2 pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
}
# Every family under tensor, pipeline and data parallelism; the large layouts where they add something.
ROWS = [(family, layout) for family in FAMILIES for layout in ("tp2", "pp2", "dp2")]
ROWS += [("gpt tied, dropout", "tp2 pp2"), ("gpt", "tp4"), ("squared relu", "tp4"), ("per token loss", "tp2 pp2")]


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


def train(backend, flags: str) -> tuple:
    """(losses, gradient norms, gradients of step 1, final weights); the last two on rank 0 only."""
    from pynative.checkpointing import gather_weights
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)

    class Recorder(Callback):
        def on_train_begin(self, state):
            self.losses, self.norms = [], []

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
            lambda samples: (Rows(), None, None),
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
            callbacks=[recorder],
        )
        return recorder.losses, recorder.norms, recorder.gradients, gather_weights(state.model)


_references: dict[str, tuple] = {}


def reference(family: str) -> tuple:
    """One process's run, once a session."""
    if family not in _references:
        _references[family] = run(1, train, f"{TINY} --global-batch-size 8 {FAMILIES[family]}")[0]
    return _references[family]


@pytest.mark.parametrize(("family", "layout"), ROWS)
def test_a_layout_equals_one_process(family, layout):
    """Masks differ between micro-batches, so averaging in the wrong place shows; dropout masks are compared too."""
    world, flags = LAYOUTS[layout]
    results = run(world, train, f"{TINY} --global-batch-size 8 {FAMILIES[family]} {flags}")
    losses, norms, gradients, weights = reference(family)
    assert all(result[:2] == results[0][:2] for result in results), "ranks report different figures"
    np.testing.assert_allclose(results[0][0], losses, rtol=1e-5)
    np.testing.assert_allclose(results[0][1], norms, rtol=1e-4)
    assert set(results[0][2]) == set(gradients) and set(results[0][3]) == set(weights)
    for name, gradient in gradients.items():
        largest = max(np.abs(gradient).max(), 1e-6)
        assert np.abs(results[0][2][name] - gradient).max() < 1e-5 * largest + 1e-9, name
    for name, weight in weights.items():
        assert np.abs(results[0][3][name] - weight).max() < 2e-3, name


def test_every_family_is_another_model():
    """No flag of the table above is without effect: each family's second loss differs from all others'."""
    losses = sorted((reference(family)[0][1], family) for family in FAMILIES)
    for (one, first), (other, second) in pairwise(losses):
        assert other - one > 1e-5, (first, second)
