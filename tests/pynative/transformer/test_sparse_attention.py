"""DeepSeek sparse attention in a model: against dense latent attention, and that its gradients and the indexer's do not
mix."""

import numpy as np
import pytest

from parallel_core.blocks import CarriedChoice, Decoder
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import ENTRIES, FAMILIES
from tests.support.layouts import STEPS, check_layout, train

SPARSE = f"{TINY} --global-batch-size 4 {STEPS} {FAMILIES['sparse attention']}"
DENSE = SPARSE[: SPARSE.index("--experimental-attention-variant")]


def trained(flags: str):
    return run(1, train, flags)[0]


def of_attention(arrays: dict) -> dict:
    return {name: array for name, array in arrays.items() if "indexer" not in name}


def test_where_all_keys_are_chosen_it_is_dense_attention():
    """With topk of the whole sequence losses and updates are dense attention's to the bit, as the indexer's loss moves
    its own weights alone."""
    flags = f"{SPARSE} --dsa-indexer-topk 16 --clip-grad 0"
    sparse, dense = trained(flags), trained(f"{DENSE} --clip-grad 0")
    assert sparse.losses == dense.losses
    assert of_attention(sparse.final).keys() == dense.final.keys()
    assert all(np.array_equal(sparse.final[name], dense.final[name]) for name in dense.final)


def test_no_gradient_passes_between_attention_and_indexer():
    """--dsa-indexer-loss-coeff multiplies the indexer's gradients and changes no other; with 0 the indexer has none."""
    once, twice, never = (trained(f"{SPARSE} --dsa-indexer-loss-coeff {c}").gradients for c in (0.5, 1.0, 0.0))
    indexers = once.keys() - of_attention(once).keys()
    assert len(indexers) == 2 * 5
    for name in once:
        factor = 2.0 if name in indexers else 1.0
        np.testing.assert_allclose(twice[name], factor * once[name], rtol=1e-5, err_msg=name)
        assert np.abs(never[name]).max() == (0.0 if name in indexers else np.abs(once[name]).max())
        assert np.abs(once[name]).max() > 0


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (1, "--kernels ops --recompute-granularity selective --recompute-modules core_attn mla_up_proj layernorm"),
        (
            2,
            "--tensor-model-parallel-size 2 --sequence-parallel --dsa-indexer-use-sparse-loss --recompute-granularity "
            "full --recompute-method uniform --recompute-num-layers 1",
        ),
        (2, "--zero-stage 3 --overlap-grad-reduce"),
        (2, "--context-parallel-size 2 --recompute-granularity selective --recompute-modules core_attn"),
        (2, "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo --dsa-indexer-use-sparse-loss"),
    ],
)
def test_computed_again_and_shared_out(world, layout):
    """Recompute, tp2, ZeRO 3, cp2 ring and Ulysses: results of one process that keeps everything."""
    loss = "--dsa-indexer-use-sparse-loss"
    samples = 8 if "zero" in layout else 4
    flags = f"{TINY} --global-batch-size {samples} {FAMILIES['sparse attention']} {loss if loss in layout else ''}"
    check_layout(flags, world, layout)


def test_layers_that_share_a_choice_find_it_again():
    """Two ranks with full recompute equal one process that keeps everything, for a model whose second layer and second
    depth have the choice of the one before and no indexer."""
    shares = (
        "--dsa-indexer-topk-freq 2 --mtp-num-layers 2 --index-share-for-mtp-iteration --position-embedding-type rope"
    )
    flags = f"{TINY} --global-batch-size 4 {FAMILIES['sparse attention']} {shares}"
    again = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    check_layout(flags, 2, f"--tensor-model-parallel-size 2 --sequence-parallel {again}")
    indexers = {name.partition(".self_attention")[0] for name in trained(f"{flags} {STEPS}").final if "indexer" in name}
    assert indexers == {"decoder.layers.0", "mtp.layers.0.transformer_layer"}


def test_a_stage_without_layers_hands_a_choice_on():
    """A pipeline whose second stage has layers that do nothing alone equals one process, where all layers share the
    first one's choice of keys."""
    shares = "--num-layers 6 --noop-layers 2,3 --dsa-indexer-topk-freq 6 --position-embedding-type rope"
    check_layout(f"{SPARSE} {shares}", 3, "--pipeline-model-parallel-size 3")


def test_layers_with_compressed_keys_send_no_choice():
    """No choice travels between stages whose layers compress keys, whatever --dsa-indexer-topk-freq says."""
    flags = f"{TINY} --num-layers 4 --pipeline-model-parallel-size 2 {ENTRIES} 0 4 0 4 --dsa-indexer-topk-freq 4"
    model = config_of(flags, 2).model_config
    assert model.compressed_attention.enabled and not CarriedChoice.any_in(model)


def carried(backend, dtype):
    """[(keys chosen, hidden states)] as the next stage receives them: a choice of 3 keys of 5 tokens, then all keys of
    3 tokens."""
    import mindspore as ms

    from pynative.transformer.carried_choice import SharedChoices

    config = config_of(SPARSE, 1)
    choice, kind = CarriedChoice(layer=0, count=3), getattr(ms, dtype)
    with job(backend, config):
        edge = SharedChoices(config.model_config, Decoder(None, None, None, received=choice, sent=choice))
        found = []
        for tokens, chosen in ((5, ms.Tensor(np.array(CHOSEN, np.int32))), (3, None)):
            hidden = ms.Tensor(np.ones((tokens, 1, 32), np.float32)).astype(kind)
            states, choices = edge.received(edge.sent(hidden, {0: chosen}))
            found.append((choices[0].asnumpy(), states.astype(ms.float32).asnumpy()))
    return found


CHOSEN = [[[0, -1, -1], [0, 1, -1], [0, 1, 2], [0, 2, 3], [1, 300, 65535]]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_choice_travels_behind_hidden_states(dtype):
    """A choice of keys sent in the hidden states' type, 16 bits too, arrives whole; with fewer tokens than keys it is
    all keys up to the query's own."""
    (of_five, states), (of_three, _) = run(1, carried, dtype)[0]
    assert of_five.tolist() == CHOSEN
    assert of_three.tolist() == [CHOSEN[0][:3]]
    np.testing.assert_array_equal(states, np.ones((5, 1, 32)))
