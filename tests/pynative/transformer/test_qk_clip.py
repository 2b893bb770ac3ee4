"""Attention reports its largest scores by head, and `--qk-clip` bounds those of the next step."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES
from tests.support.layouts import Rows, check_layout

PLAIN = f"{TINY} --global-batch-size 8 {FAMILIES['llama']} --init-method-std 0.3"
LATENT = f"{TINY} --global-batch-size 8 {FAMILIES['latent attention, compressed queries']} --init-method-std 0.3"
CLIP = "--qk-clip --qk-clip-threshold 0.5 --qk-clip-alpha 0.3"


def scores(backend, flags: str) -> list[np.ndarray]:
    """For each step the largest attention scores [layers, n] that are reported."""
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config, found = config_of(flags, backend.world_size), []

    class Recorder(Callback):
        def on_step_end(self, state):
            found.append(state.result.figures["max_attention_logit"])

    with job(backend, config):
        pretrain(
            lambda samples: (Rows(), None, None),
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
            callbacks=[Recorder()],
        )
    return found


@pytest.mark.parametrize("model", [PLAIN, LATENT])
def test_scores_of_the_next_step_are_bounded(model):
    """With a learning rate of nearly 0 the next step's scores of heads above the threshold 0.5 are scaled down to it,
    others stay; `host`, `ops` and blocked attention report the same."""
    flags = f"{model} --lr 1e-30 --min-lr 0 --train-iters 3 --global-batch-size 16"
    told = {kernels: run(1, scores, f"{flags} {CLIP} --kernels {kernels}")[0] for kernels in ("host", "ops")}
    blocks = run(1, scores, f"{flags} {CLIP} --kernels ops --use-flash-attn")[0]
    for one, other, third in zip(told["host"], told["ops"], blocks, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
        np.testing.assert_allclose(one, third, rtol=1e-4)
    first, second, third = told["host"]
    groups = first.reshape(len(first), -1, 2 if model is PLAIN else 1)
    most = np.repeat(groups.max(axis=-1), groups.shape[-1], axis=-1).reshape(first.shape)
    assert (most > 0.5).any()
    np.testing.assert_allclose(second[0], (first * np.minimum(1, 0.5 / most))[0], rtol=1e-3)
    assert (third[0] <= 0.5 * (1 + 1e-5)).all()


@pytest.mark.parametrize(
    ("model", "world", "layout"),
    [
        (PLAIN, 2, "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"),
        (LATENT, 2, "--tensor-model-parallel-size 2 --recompute-granularity selective"),
        (PLAIN, 2, "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo"),
        (LATENT, 2, "--context-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce"),
        (PLAIN, 2, "--pipeline-model-parallel-size 2 --num-layers 2"),
        (PLAIN, 2, "--zero-stage 3"),
    ],
)
def test_layouts(model, world, layout):
    """Losses and weights with --qk-clip under each layout are one rank's."""
    check_layout(f"{model} {CLIP}", world, layout)
