"""DeepSeek sparse attention in a model: beside dense latent attention, and which gradients meet."""

import numpy as np
import pytest

from parallel_core.blocks import CarriedChoice, Decoder
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES
from tests.support.layouts import STEPS, check_layout, train

SPARSE = f"{TINY} --global-batch-size 4 {STEPS} {FAMILIES['sparse attention']}"
DENSE = SPARSE[: SPARSE.index("--experimental-attention-variant")]


def trained(flags: str):
    return run(1, train, flags)[0]


def of_attention(arrays: dict) -> dict:
    return {name: array for name, array in arrays.items() if "indexer" not in name}


def test_where_all_keys_are_chosen_it_is_dense_attention():
    """To the last bit, losses and every update: no key is left out, and the indexer's loss moves its weights alone."""
    flags = f"{SPARSE} --dsa-indexer-topk 16 --clip-grad 0"
    sparse, dense = trained(flags), trained(f"{DENSE} --clip-grad 0")
    assert sparse.losses == dense.losses
    assert of_attention(sparse.final).keys() == dense.final.keys()
    assert all(np.array_equal(sparse.final[name], dense.final[name]) for name in dense.final)


def test_no_gradient_passes_between_attention_and_indexer():
    """With another coefficient the indexer's gradients are multiplied and all others the same; with 0 it has none."""
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
    """Recompute and layouts give the result of one process that saves everything."""
    loss = "--dsa-indexer-use-sparse-loss"
    samples = 8 if "zero" in layout else 4
    flags = f"{TINY} --global-batch-size {samples} {FAMILIES['sparse attention']} {loss if loss in layout else ''}"
    check_layout(flags, world, layout)


def test_layers_that_share_a_choice_find_it_again():
    """Two ranks that compute every layer again as one process that keeps everything, of a model whose second layer has
    the choice of its first, and whose second depth that of the depth before: neither has an indexer."""
    shares = (
        "--dsa-indexer-topk-freq 2 --mtp-num-layers 2 --index-share-for-mtp-iteration --position-embedding-type rope"
    )
    flags = f"{TINY} --global-batch-size 4 {FAMILIES['sparse attention']} {shares}"
    again = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    check_layout(flags, 2, f"--tensor-model-parallel-size 2 --sequence-parallel {again}")
    indexers = {name.partition(".self_attention")[0] for name in trained(f"{flags} {STEPS}").final if "indexer" in name}
    assert indexers == {"decoder.layers.0", "mtp.layers.0.transformer_layer"}


def carried(backend, dtype):
    """(a choice of 3 keys of 5 tokens, and all keys of 3 tokens, as the next stage has them, hidden states behind)."""
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
    """Every position, of 16-bit types, too; where no more tokens than keys are chosen: all up to the query's own."""
    (of_five, states), (of_three, _) = run(1, carried, dtype)[0]
    assert of_five.tolist() == CHOSEN
    assert of_three.tolist() == [CHOSEN[0][:3]]
    np.testing.assert_array_equal(states, np.ones((5, 1, 32)))
