"""Constants that some families multiply by (scores, residuals, logits): each equals a change of weights or logits in
numpy."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import check_layout

FLAGS = f"{TINY} --untie-embeddings-and-output-weights --position-embedding-type rope --normalization RMSNorm"

OUTPUTS = ("linear_proj.weight", "linear_proj.bias", "linear_fc2.weight", "linear_fc2.bias")


def logits_of(backend, flags: str, parts: tuple[str, ...] = (), factor: float = 1.0) -> np.ndarray:
    """Logits of fixed tokens, with the weights whose names end in one of `parts` multiplied by `factor`."""
    import mindspore as ms

    from pynative.parameter import initialize_parameters, name_parameters, write_parameter
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{FLAGS} {flags}", backend.world_size)
    with job(backend, config):
        model = GPTModel(config.model_config)
        initialize_parameters(model, 1)
        for parameter in name_parameters(model):
            if parts and parameter.meta.spec.name.endswith(parts):
                write_parameter(parameter, parameter.asnumpy() * factor)
        tokens = np.random.default_rng(0).integers(0, 60, (2, 16)).astype(np.int32)
        return model(ms.Tensor(tokens)).asnumpy()


@pytest.mark.parametrize(
    ("flags", "parts", "factor"),
    [
        ("--embedding-multiplier-scale 3", ("word_embeddings.weight",), 3.0),
        ("--input-embeds-norm", ("word_embeddings.weight",), 32**0.5),
        ("--scale-depth 0.7", OUTPUTS, 0.7 / 2**0.5),
        ("--output-multiplier-scale 0.25", ("output_layer.weight",), 0.25),
        ("--dim-model-base 8", ("output_layer.weight",), 8 / 32),
    ],
)  # fmt: skip
def test_a_scale_is_a_scale_of_weights(flags, parts, factor):
    """Each scale changes the logits, and as weights multiplied by its factor do."""
    scaled, plain = run(1, logits_of, flags)[0], run(1, logits_of, "")[0]
    np.testing.assert_allclose(scaled, run(1, logits_of, "", parts, factor)[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(scaled, plain, rtol=1e-2)


def test_logits_are_capped():
    """--output-logit-softcapping c gives c tanh(logits / c)."""
    capped, plain = run(1, logits_of, "--output-logit-softcapping 0.5")[0], run(1, logits_of, "")[0]
    np.testing.assert_allclose(capped, 0.5 * np.tanh(plain / 0.5), rtol=1e-5, atol=1e-6)


def test_scores_are_divided_by_the_root_of_the_scalar():
    """--query-pre-attn-scalar 8, the head size, changes no logit; 2 does."""
    same, other, plain = (
        run(1, logits_of, f)[0] for f in ("--query-pre-attn-scalar 8", "--query-pre-attn-scalar 2", "")
    )
    np.testing.assert_allclose(same, plain, rtol=1e-6)
    assert not np.allclose(other, plain, rtol=1e-3)


SCALES = (
    "--embedding-multiplier-scale 3 --scale-depth 0.7 --output-multiplier-scale 0.5 --output-logit-softcapping 2 "
    "--query-pre-attn-scalar 4 --use-rope-scaling --original-max-position-embeddings 8 --hidden-act relu"
)


@pytest.mark.parametrize(
    "layout", ["--tensor-model-parallel-size 2 --sequence-parallel", "--pipeline-model-parallel-size 2"]
)
def test_scales_at_a_layout_equal_one_process(layout):
    """All scales together on tp2 with sequence parallelism, and on pp2, train as one process does."""
    check_layout(f"{FLAGS} {SCALES} --global-batch-size 4", 2, layout)


def test_silu_trains():
    """--hidden-act silu, an activation without a gate, on tp2 is one process's."""
    check_layout(f"{FLAGS} --hidden-act silu --global-batch-size 4", 2, "--tensor-model-parallel-size 2")


def test_norms_of_latents_have_an_epsilon_of_their_own():
    """--latent-norm-epsilon with the other norms' value changes no logit; a large one does."""
    latent = "--multi-latent-attention --kv-lora-rank 12 --qk-head-dim 6 --qk-pos-emb-head-dim 4 --v-head-dim 5"
    own = ("", "--latent-norm-epsilon 1e-5", "--latent-norm-epsilon 3")
    flags = [f"{latent} --qk-layernorm {more}" for more in own]
    plain, same, other = (run(1, logits_of, one)[0] for one in flags)
    assert np.array_equal(plain, same) and not np.allclose(plain, other, rtol=1e-3)
