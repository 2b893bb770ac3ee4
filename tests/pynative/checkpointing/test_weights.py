"""`gather_weights` and `load_weights`: a model's weights as whole arrays by name, whatever its layout."""

import json

import numpy as np
import pytest

from tests.support.checkpoint_jobs import layout_flags
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job

LAYOUTS = [(1, 1, 1), (2, 2, 1), (2, 1, 2), (4, 2, 2)]
GATED = "--swiglu --group-query-attention --num-query-groups 2 --add-qkv-bias"


def round_trip(backend, flags: str, change: str | None) -> tuple:
    """Load drawn arrays into a model and gather them: (arrays loaded, arrays gathered; None but on rank 0, tied
    embedding's copy of this stage or None). change="missing": arrays that do not fit."""
    from pynative import parallel_state
    from pynative.checkpointing import gather_weights, load_weights
    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {flags}", backend.world_size)
    with job(backend, config):
        first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
        model = GPTModel(config.model_config, pre_process=first, post_process=last)
        initialize_parameters(model, 1)
        shapes = shapes_of_rank_0(backend, gather_weights(model))
        generator = np.random.default_rng(5)
        arrays = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        if change == "missing":
            del arrays["decoder.final_layernorm.weight"]
            arrays["decoder.layers.7.extra"] = np.zeros(3, np.float32)
            arrays["embedding.word_embeddings.weight"] = np.zeros((5, 32), np.float32)
        load_weights(model, arrays)
        has_tied = (first or last) and not config.model_config.untie_embeddings_and_output_weights
        tied = model.shared_embedding_or_output_weight().asnumpy() if has_tied else None
        return arrays, gather_weights(model), tied


def shapes_of_rank_0(backend, weights) -> dict[str, tuple[int, ...]]:
    """Name -> shape of rank 0's arrays, on every rank: broadcast as JSON in an array of characters."""
    import mindspore as ms

    text = json.dumps({name: array.shape for name, array in weights.items()}) if weights is not None else ""
    letters = np.zeros(20000, np.int32)
    letters[: len(text)] = list(text.encode())
    letters = backend.world.broadcast(ms.Tensor(letters), 0).asnumpy()
    return json.loads(bytes(letters[letters > 0].astype(np.uint8)))


@pytest.mark.parametrize("flags", ["", GATED, "--untie-embeddings-and-output-weights"], ids=["gpt", "gated", "untied"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_is_loaded_comes_out_again(layout, flags):
    """`gather_weights` after `load_weights` returns the same arrays, cut over tensor ranks and stages, fused parts
    included; the last stage's tied copy is loaded too."""
    world, tensor, pipeline = layout
    results = run(world, round_trip, f"{flags} {layout_flags(tensor, pipeline)}", None)
    arrays, gathered, tied = results[0]
    assert arrays.keys() == gathered.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(gathered[name], values, err_msg=name)
    assert [result[1] for result in results[1:]] == [None] * (world - 1)
    if tied is not None:
        np.testing.assert_array_equal(results[-tensor][2], tied)


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 1, 2)], ids=str)
def test_all_that_does_not_fit_is_listed(layout):
    """`load_weights` with a missing name, one too many and a wrong shape: one error lists them, and nothing
    is loaded."""
    world, tensor, pipeline = layout
    with pytest.raises(ValueError, match="nothing was loaded") as error:
        run(world, round_trip, layout_flags(tensor, pipeline), "missing")
    text = str(error.value) + "".join(getattr(error.value, "__notes__", []))
    assert "decoder.layers.7.extra: the table of weights has it, the model does not" in text
    assert "embedding.word_embeddings.weight: [5, 32] in the table, [64, 32] in the model" in text
    if world == 1:  # with several stages another rank reports this, and only the first error is raised
        assert "decoder.final_layernorm.weight: the model has it, the table does not" in text
