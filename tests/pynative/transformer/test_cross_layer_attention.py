"""Keys and values shared by neighbouring layers (--cla-share-factor): against the formula in numpy, and on
any layout."""

import numpy as np
import pytest

from mapping.explain import stops
from parallel_core.blocks import CrossLayerAttention, layer_of
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES
from tests.support.layouts import Rows, check_layout, reference
from tests.support.mapping.lines import reading

FAMILY = f"{FAMILIES['llama']} --qk-layernorm --qk-layernorm-after-rope --num-layers 4 --cla-share-factor"
FLAGS = f"{TINY} --global-batch-size 8 {FAMILY}"
FULL = "--recompute-granularity full --recompute-method"


def normed(x, weight):
    """RMSNorm over the last axis, with TINY's epsilon."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def turned(x):
    """Rotary embedding of x [s, n, d] at positions 0 .. s - 1, pairs (i, i + d/2)."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(half) / half))[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        (first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)), axis=-1
    )


def attended(x, weights, layer, shared):
    """(attention's output [s, h], (keys, values) before rotation and norm) of one sequence in float64; `shared`: an
    earlier layer's keys and values, or None."""
    rows = x @ weights(layer, "self_attention.linear_qkv.weight").T
    if shared is None:
        groups = rows.reshape(len(x), 2, 4, 8)  # of each group 2 query heads, a key, a value
        query, shared = groups[:, :, :2].reshape(len(x), 4, 8), (groups[:, :, 2], groups[:, :, 3])
    else:
        query = rows.reshape(len(x), 4, 8)
    key, value = (np.repeat(part, 2, axis=1) for part in shared)
    query = normed(turned(query), weights(layer, "self_attention.q_layernorm.weight"))
    key = normed(turned(key), weights(layer, "self_attention.k_layernorm.weight"))
    scores = np.einsum("qnd,knd->nqk", query, key) / np.sqrt(8)
    scores[:, np.triu_indices(len(x), 1)[0], np.triu_indices(len(x), 1)[1]] = -np.inf
    probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    out = np.einsum("nqk,knd->qnd", probabilities, value).reshape(len(x), -1)
    return out @ weights(layer, "self_attention.linear_proj.weight").T, shared


def loss_of(arrays, factor):
    """(mean loss of all counting tokens, mean over micro-batches of 2 rows of their means) of the first 8 rows in
    float64: the logged loss, and the one whose gradient is taken."""
    named = {name: np.asarray(array, np.float64) for name, array in arrays.items()}

    def weights(layer, name):
        return named[f"decoder.layers.{layer}.{name}"]

    rows, sums = Rows(), []
    for start in range(0, 8, 2):
        total = count = 0.0
        for number in (start, start + 1):
            row = rows[number]
            x, shared = named["embedding.word_embeddings.weight"][row["tokens"]], None
            for layer in range(4):
                shared = None if layer % factor == 0 else shared
                added, shared = attended(normed(x, weights(layer, "input_layernorm.weight")), weights, layer, shared)
                x = x + added
                inner = normed(x, weights(layer, "pre_mlp_layernorm.weight"))
                gate, up = np.split(inner @ weights(layer, "mlp.linear_fc1.weight").T, 2, axis=1)
                x = x + (gate / (1 + np.exp(-gate)) * up) @ weights(layer, "mlp.linear_fc2.weight").T
            logits = normed(x, named["decoder.final_layernorm.weight"]) @ named["output_layer.weight"].T
            logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            total -= (logs[np.arange(16), row["labels"]] * row["loss_mask"]).sum()
            count += row["loss_mask"].sum()
        sums.append((total, count))
    totals, counts = np.array(sums).T
    return totals.sum() / counts.sum(), np.mean(totals / counts)


@pytest.mark.parametrize("factor", [2, 4])
def test_loss_and_gradients_of_keys_are_the_formulas(factor):
    """The loss, and the gradients of the weights that make shared keys and values, to which later layers add, and of
    those that make queries alone, along a random direction."""
    found = reference(f"{FLAGS} {factor}")
    np.testing.assert_allclose(found.losses[0], loss_of(found.initial, factor)[0], rtol=2e-6)
    for layer in (0, 1):
        name = f"decoder.layers.{layer}.self_attention.linear_qkv.weight"
        assert found.initial[name].shape == ((64, 32) if layer == 0 else (32, 32))
        way = np.random.default_rng(layer).normal(size=found.initial[name].shape)
        ends = [loss_of({**found.initial, name: found.initial[name] + step * way}, factor) for step in (1e-5, -1e-5)]
        slope = (ends[0][1] - ends[1][1]) / 2e-5
        size = np.linalg.norm(found.gradients[name])
        assert abs((found.gradients[name] * way).sum() - slope) < 1e-5 * size


@pytest.mark.parametrize(
    ("factor", "world", "layout"),
    [
        (4, 2, f"--tensor-model-parallel-size 2 --sequence-parallel {FULL} block --recompute-num-layers 1"),
        (2, 2, f"--pipeline-model-parallel-size 2 --kernels ops {FULL} uniform --recompute-num-layers 1"),
        (2, 2, "--context-parallel-size 2 --recompute-granularity selective --recompute-modules core_attn layernorm"),
    ],
    ids=["tp2 sp", "pp2", "cp2"],
)
def test_a_layout_equals_one_process(factor, world, layout):
    """Also with full recompute, where layers that share keys run again together, however few are asked for."""
    check_layout(f"{FLAGS} {factor}", world, layout)


def test_ranks_that_share_one_key_head():
    """One key head on tp2, which both ranks hold: one process's results; layers without keys cut their
    queries alone."""
    check_layout(f"{FLAGS} 2 --num-query-groups 1", 2, "--tensor-model-parallel-size 2")


def test_layers_know_what_they_make():
    """With factor 3 layers 0 and 3 of four make keys, 0 and 1 pass them on; "self_attention" as a whole is no part that
    may run again."""
    model = config_of(f"{FLAGS} 3", 1).model_config
    blocks = [layer_of(model, number).self_attention for number in range(4)]
    assert all(isinstance(block, CrossLayerAttention) for block in blocks)
    assert [block.makes_keys for block in blocks] == [True, False, False, True]
    assert [block.serves_next for block in blocks] == [True, True, False, False]
    assert "self_attention" not in {part.name for part in layer_of(model, 0).parts().parts}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--cla-share-factor 3 --pipeline-model-parallel-size 2", "--cla-share-factor 3: would have layer 3"),
        ("--cla-share-factor 2 --mtp-num-layers 1", "--mtp-num-layers 1: does not go with --cla-share-factor 2"),
        ("--cla-share-factor 2 --multi-latent-attention", "--multi-latent-attention"),
    ],
)
def test_what_does_not_go_with_it_is_named(flags, words):
    """--cla-share-factor with a pipeline cut, predicted depths or latent attention is an error that names the flag."""
    found = [str(error) for error in stops(reading(f"--position-embedding-type rope {flags}", world_size=2))]
    assert any(words in error for error in found), found
