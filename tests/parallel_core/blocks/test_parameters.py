"""The blocks' list of parameters against the parameters of built models."""

from math import prod

import pytest

from parallel_core.blocks import stage_chunks
from parallel_core.costs import StagePlan
from parallel_core.sharding import place
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES, STREAMS

TP2 = "--tensor-model-parallel-size 2"
PP2 = "--pipeline-model-parallel-size 2"
LAYOUTS = {
    "one rank": (1, ""),
    "tp2": (2, TP2),
    "tp2 sp": (2, f"{TP2} --sequence-parallel"),
    "pp2": (2, f"{PP2} --hidden-size 40 --kv-channels 8"),  # with 40 the buffer's last cache lines are padded
}
MODELS = FAMILIES | {
    "qwen": "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --add-qkv-bias "
    "--group-query-attention --num-query-groups 2",
    "several residual streams": f"{FAMILIES['two tokens further']} {STREAMS}",
    "no bias in the projections, no final norm": "--disable-bias-linear --no-post-layer-norm",
    "embeddings of their own deviation": "--embedding-init-method-std 0.5 --untie-embeddings-and-output-weights",
}


def built(backend, flags: str) -> tuple[list, int]:
    """(spec, recipe, type, local shape) of this rank's parameters in the model's order, and its flat buffer's size."""
    from pynative import parallel_state
    from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
    from pynative.parameter import name_parameters
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        ends = {
            "pre_process": parallel_state.is_pipeline_first_stage(),
            "post_process": parallel_state.is_pipeline_last_stage(),
        }
        parameters = name_parameters(GPTModel(config.model_config, **ends))
        described = [(p.meta.spec, p.meta.initial, str(p.dtype).lower(), tuple(p.shape)) for p in parameters]
        return described, ParamAndGradBuffers(parameters, config.training_config.gradient).size


def expected(config, stage: int) -> list:
    """The (spec, recipe, type, local shape) that the blocks list for a stage, to compare with `built`."""
    coordinates = StagePlan(config, stage).coordinates
    named = [item for chunk in stage_chunks(config.model_config, stage) for item in chunk.parameters().items()]
    return [
        (spec.shard.named(name), spec.initial, spec.dtype, place(spec.shard, coordinates).shape) for name, spec in named
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_has_the_parameters_of_its_blocks(model, layout):
    """A built model and the blocks agree on each parameter's name, global and local shape, cuts, partial gradients,
    recipe and type, in order, on every rank; so do the sizes of the flat buffers."""
    world, options = LAYOUTS[layout]
    flags = f"{TINY} {MODELS[model]} {options}"
    config = config_of(flags, world)
    for rank, (parameters, size) in enumerate(run(world, built, flags)):
        stage = rank if layout == "pp2" else 0
        assert parameters == expected(config, stage)
        assert sum(plan.size for plan in StagePlan(config, stage).buffers) == size


def count(flags: str, stage: int = 0) -> int:
    """The number of elements of a stage's parameters, before tensor parallelism cuts them."""
    return sum(prod(spec.shape) for spec in StagePlan(config_of(flags, 8), stage).parameters)


def test_published_models_have_their_published_sizes():
    """Parameters counted from flags equal the model cards: GPT-2 small 124,439,808 with its vocabulary of 50,257;
    Llama-3-8B 8,030,261,248."""
    common = "--micro-batch-size 1 --train-iters 1 --lr 1e-3 --tokenizer-type NullTokenizer --eval-iters 0"
    gpt2 = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024"
    assert count(f"{common} {gpt2} --vocab-size 50256 --padded-vocab-size 50257") == 124_439_808
    llama = (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 "
        "--ffn-hidden-size 14336 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
        "--group-query-attention --num-query-groups 8 --untie-embeddings-and-output-weights "
        "--vocab-size 128255 --padded-vocab-size 128256"
    )
    assert count(f"{common} {llama}") == 8_030_261_248
