"""Bytes that the blocks predict a forward keeps for its backward, against the memory of numpy's arrays after a
forward."""

import gc
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from parallel_core.blocks import Layer, MicroBatch, stage_chunks
from parallel_core.blocks.recomputed import kept_by_second_run
from parallel_core.costs import StagePlan, kept_bytes
from tests.support.distributed import run
from tests.support.engine import config_of, job
from tests.support.families import BESIDE, ENTRIES, FAMILIES, STREAMS

pytestmark = pytest.mark.slow

SIZES = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 2 --train-iters 1 --lr 1e-3 --vocab-size 500 --padded-vocab-size 512 --eval-iters 0 "
    "--tokenizer-type NullTokenizer --attention-dropout 0 --hidden-dropout 0 --device-target CPU"
)
ALLOCATIONS_OF_NUMPY = 389047
"""numpy's domain in tracemalloc: the memory of arrays, and so of all tensors that the host kernels make."""


def traced_bytes() -> int:
    """Bytes of the numpy arrays made since tracing began. (A snapshot's own filter takes ten times as long.)"""
    traces = tracemalloc.take_snapshot().traces._traces
    return sum(size for domain, size, *_ in traces if domain == ALLOCATIONS_OF_NUMPY)


def numpy_bytes() -> int:
    """Bytes of the numpy arrays made since tracing began, after a garbage collection."""
    gc.collect()
    return traced_bytes()


@contextmanager
def traced_forward(backend, flags: str):
    """A context that gives the forward of one micro-batch of this rank's chunk, as a function to call, while memory is
    traced."""
    import mindspore as ms

    from pynative import kernels, parallel_state
    from pynative.context_parallel.batch import get_batch_on_this_cp_rank
    from pynative.parameter import type_of
    from pynative.tape import autograd
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
        model = GPTModel(config.model_config, pre_process=first, post_process=last).set_train()
        for parameter in model.get_parameters():
            parameter.requires_grad = parameter.requires_grad and config.lora_config.trains(parameter.meta.spec)
        micro_batch = MicroBatch.of(config.model_config)
        shape = (micro_batch.tokens_between // micro_batch.batch, micro_batch.batch, config.model_config.residual_width)
        ids, mask = np.ones((2, 128), np.int32), np.ones((2, 128), np.float32)
        tokens, labels, loss_mask = (
            ms.Tensor.from_numpy(np.ascontiguousarray(x))
            for x in get_batch_on_this_cp_rank({"a": ids, "b": ids.copy(), "c": mask}).values()
        )

        def forward():
            with autograd.recording():
                sent = ms.Tensor.from_numpy(np.ones(shape, np.float32))
                sent = kernels.cast(sent, type_of(config.model_config.residual_dtype))
                received = None if first else autograd.leaf(sent)
                model.set_input_tensor(received)
                return model(tokens, labels=labels, loss_mask=loss_mask)

        del ids, mask
        forward()  # makes rotary tables and other things that are made once
        tracemalloc.start()
        try:
            yield forward
        finally:
            tracemalloc.stop()


def measured(backend, flags: str) -> int:
    """Bytes that a forward leaves in arrays of this rank, without its result."""
    with traced_forward(backend, flags) as forward:
        before = numpy_bytes()
        result = forward()
        return numpy_bytes() - before - result.nbytes


def measured_of_second_run(backend, flags: str) -> int:
    """The most bytes that one recomputed part adds to the arrays when a backward runs it again."""
    import mindspore as ms

    from pynative.tape import autograd
    from pynative.tensor_parallel import recompute

    run_again, grown = recompute._Run._run_again, []

    def watched(part):
        before = numpy_bytes()
        run_again(part)
        grown.append(numpy_bytes() - before)

    with traced_forward(backend, flags) as forward, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute._Run, "_run_again", watched)
        autograd.backward([forward()], [ms.Tensor.from_numpy(np.ones((), np.float32))])
    return max(grown)


LAYOUTS = {
    "one rank": (1, ""),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "ep2": (2, "--expert-model-parallel-size 2"),
    "ring": (2, "--context-parallel-size 2"),
    "ulysses": (2, "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo"),
}
MODELS = ["gpt", "gpt tied, dropout", "llama", "head norms, part of the head turns", "sandwich norm"]
ROWS = [("one rank", model) for model in MODELS]
ROWS += [(layout, "llama") for layout in LAYOUTS if layout not in ("one rank", "ep2")] + [("tp2 sp", "gpt")]
ROWS += [("tp2 sp", "norm of embeddings"), ("tp2 sp", "norm of embeddings, no positions")]


ROWS = [(*row, "") for row in ROWS]
ROWS += [(layout, "llama", "--bf16") for layout in LAYOUTS if layout != "ep2"] + [
    ("one rank", "sandwich norm", "--bf16")
]
FURTHER = "two tokens further"
ROWS += [("one rank", FURTHER, "--bf16 --params-dtype float32 --fp32-residual-connection"), ("pp2", FURTHER, "")]
ROWS += [("tp2 sp", FURTHER, "--bf16"), ("ring", FURTHER, "")]
LATENT, COMPRESSED = "latent attention", "latent attention, compressed queries"
ROWS += [
    ("one rank", COMPRESSED, ""),
    ("tp2", LATENT, "--bf16"),
    ("tp2 sp", COMPRESSED, "--bf16"),
    ("ring", LATENT, ""),
    ("one rank", "sparse attention", ""),
    ("tp2 sp", "sparse attention", "--bf16 --dsa-indexer-use-sparse-loss"),
    ("one rank", "sparse attention", "--dsa-indexer-topk-freq 2"),
    ("ring", "sparse attention", ""),
    ("ulysses", "sparse attention", "--bf16 --dsa-indexer-topk-freq 2"),
]
ROWS += [("one rank", "llama", STREAMS), ("tp2 sp", "llama", f"{STREAMS} --bf16"), ("pp2", FURTHER, STREAMS)]
SHARED_KEYS = "--cla-share-factor 2"
ROWS += [("one rank", "llama", f"{SHARED_KEYS} --qk-layernorm --qk-layernorm-after-rope")]
ROWS += [("ulysses", "llama", f"{SHARED_KEYS} --bf16")]
DELTA, SPACES = "gated delta net", "state spaces"
HYBRID = "--hybrid-override-pattern M*-M"
ROWS += [("one rank", SPACES, f"{HYBRID} --bf16"), ("ring", SPACES, HYBRID)]
ROWS += [("one rank", DELTA, ""), ("tp2 sp", DELTA, "--bf16"), ("ring", DELTA, "")]
PAIRS = f"{BESIDE} HH*H"
ROWS += [("one rank", "gpt", PAIRS), ("tp2 sp", "gpt", f"{PAIRS} --bf16"), ("ring", "gpt", PAIRS)]
OF_ENTRIES = f"{ENTRIES} 4 16 0 4"
ROWS += [("one rank", "gpt", OF_ENTRIES), ("tp2 sp", "gpt", f"{OF_ENTRIES} --bf16"), ("ring", "gpt", OF_ENTRIES)]
FP32_RESIDUAL = "--bf16 --params-dtype float32 --fp32-residual-connection"
ROWS += [("pp2", "sandwich norm", FP32_RESIDUAL), ("one rank", "no positions, residual after norm", "")]
NORMS_KEPT = r"--select-recompute-exclude ['.*_layernorm']"
ROWS += [("one rank", "llama", NORMS_KEPT), ("one rank", "gpt", f"{FP32_RESIDUAL} {NORMS_KEPT}")]
ADAPTERS = "--lora-r 4 --lora-target-modules"
OF_QKV = f"{ADAPTERS} linear_qkv"
ROWS += [("one rank", "gpt", f"{ADAPTERS} linear_qkv linear_proj linear_fc1 linear_fc2")]
ROWS += [("tp2 sp", "llama", f"{ADAPTERS} linear_fc1 {NORMS_KEPT}")]
ROWS += [("one rank", FURTHER, OF_QKV), ("tp2 sp", FURTHER, f"--bf16 {OF_QKV}")]


EVEN = "--moe-router-topk 4"
"""Each token goes to all 4 experts, so that every expert has as many rows as the blocks count with."""
ROWS += [("one rank", "experts", f"{EVEN} {ADAPTERS} linear_qkv")]
ROWS += [("one rank", COMPRESSED, f"{ADAPTERS} linear_kv_down_proj linear_kv_up_proj")]
ROWS += [("one rank", "experts", EVEN), ("one rank", "experts", f"{EVEN} --bf16 --moe-grouped-gemm")]
ROWS += [("ep2", "experts", f"{EVEN} --moe-grouped-gemm"), ("tp2 sp", "experts", f"{EVEN} --bf16 --moe-grouped-gemm")]
ROWS += [("one rank", "experts", f"{EVEN} --moe-router-dtype {types}") for types in ("fp32", "fp64", "fp64 --bf16")]


@pytest.mark.parametrize(("layout", "model", "types"), ROWS)
def test_kept_bytes_are_those_that_a_forward_leaves(layout, model, types):
    """The blocks' kept bytes equal the measured ones to the byte, on every rank of the layout."""
    world, options = LAYOUTS[layout]
    flags = f"{SIZES} {FAMILIES[model]} {options} {types}"
    config = config_of(flags, world)
    for rank, found in enumerate(run(world, measured, flags)):
        stage = rank if layout == "pp2" else 0
        expected = kept_bytes(StagePlan(config, stage))
        assert found == sum(expected), (rank, found, expected)


FULL = "--recompute-granularity full --recompute-method"
UP_PROJECTIONS = "--recompute-granularity selective --recompute-modules mla_up_proj"
RECOMPUTED = [
    ("one rank", "llama", f"{SHARED_KEYS} {FULL} block --recompute-num-layers 1"),
    ("one rank", "llama", f"{FULL} uniform --recompute-num-layers 2"),
    ("one rank", "gpt", f"{FULL} block --recompute-num-layers 1 --recompute-activation-function"),
    ("one rank", "gpt tied, dropout", "--recompute-granularity selective --recompute-modules core_attn layernorm"),
    ("one rank", "llama", r"--select-recompute ['mlp\\..*','self_attention\\.core_attention','.*_layernorm']"),
    ("tp2", "llama", f"{FULL} uniform --recompute-num-layers 1 --recompute-slice-activation"),
    ("tp2", "llama", "--recompute [3] --no-mp-comm-recompute"),
    ("tp2 sp", "llama", "--recompute [2] --no-mp-comm-recompute --recompute-slice-activation"),
    ("tp2 sp", "gpt", "--recompute-granularity selective --recompute-modules layernorm mlp --no-mp-comm-recompute"),
    ("tp2 sp", "gpt", r"--recompute-norm --select-recompute ['self_attention','mlp\\.linear_fc1']"),
    ("pp2", "llama", "--recompute [1,2]"),
    ("pp2", FURTHER, "--recompute [2,4]"),
    ("pp2", FURTHER, f"--recompute [2,4] {STREAMS}"),
    ("one rank", "llama", f"{STREAMS} --recompute-granularity selective --recompute-modules layernorm mlp"),
    ("tp2", FURTHER, f"{FULL} uniform --recompute-num-layers 3 --recompute-slice-activation"),
    ("one rank", FURTHER, f"{FULL} uniform --recompute-num-layers 1 --bf16 --fp32-residual-connection"),
    ("tp2 sp", FURTHER, "--recompute-granularity selective --recompute-modules core_attn layernorm mlp"),
    ("one rank", FURTHER, f"{OF_QKV} {FULL} uniform --recompute-num-layers 1"),
    ("tp2 sp", COMPRESSED, "--recompute-granularity selective --recompute-modules core_attn layernorm"),
    ("tp2 sp", LATENT, r"--recompute-norm --select-recompute ['self_attention','mlp\\.linear_fc1']"),
    ("one rank", "experts", f"{EVEN} --recompute-granularity selective --recompute-modules moe_act layernorm"),
    ("one rank", "experts", f"{EVEN} --recompute-granularity selective --recompute-modules shared_experts mlp"),
    ("ep2", "experts", f"{EVEN} --recompute-granularity selective --recompute-modules moe core_attn"),
    ("ep2", "experts", f"{EVEN} {FULL} uniform --recompute-num-layers 2"),
    ("tp2 sp", COMPRESSED, f"{UP_PROJECTIONS} layernorm --bf16"),
    ("one rank", LATENT, f"{UP_PROJECTIONS} core_attn"),
    ("one rank", "sparse attention", f"{UP_PROJECTIONS} core_attn"),
    ("one rank", "sparse attention", f"{FULL} uniform --recompute-num-layers 1 --dsa-indexer-topk-freq 2"),
    ("ring", LATENT, UP_PROJECTIONS),
    ("one rank", LATENT, r"--select-recompute ['self_attention','latent\\.up_projections']"),
    ("one rank", COMPRESSED, r"--recompute True --select-recompute-exclude ['latent\\.up_projections']"),
    ("ring", "llama", "--recompute-granularity selective"),
    ("ulysses", DELTA, "--recompute-granularity selective --recompute-modules core_attn layernorm"),
    ("one rank", DELTA, r"--bf16 --select-recompute ['self_attention']"),
    ("ulysses", "llama", "--recompute-activations --recompute-modules core_attn mlp"),
    ("one rank", "gpt", f"{PAIRS} --recompute-granularity selective --recompute-modules core_attn layernorm"),
    ("tp2 sp", "gpt", rf"{PAIRS} --select-recompute ['self_attention'] --no-mp-comm-recompute"),
    ("one rank", "gpt", f"{OF_ENTRIES} --recompute-granularity selective --recompute-modules core_attn layernorm"),
    ("one rank", "gpt", f"{FP32_RESIDUAL} --recompute-norm --recompute-granularity selective --recompute-modules mlp"),
    ("one rank", "gpt", rf"{FP32_RESIDUAL} --select-recompute ['mlp','self_attention'] {NORMS_KEPT}"),
]


@pytest.mark.parametrize(("layout", "model", "recompute"), RECOMPUTED)
def test_less_is_kept_of_what_is_computed_again(layout, model, recompute):
    """The blocks' kept bytes with recomputation equal the measured ones to the byte, on every rank, and are fewer than
    without it."""
    world, options = LAYOUTS[layout]
    flags = f"{SIZES} {FAMILIES[model]} {options}"
    shared = " ".join(part for part in (EVEN, STREAMS, PAIRS, OF_ENTRIES, OF_QKV) if part in recompute)
    plain, config = (config_of(f"{flags} {more}", world) for more in (shared, recompute))
    for rank, found in enumerate(run(world, measured, f"{flags} {recompute}")):
        stage = rank if layout == "pp2" else 0
        expected = kept_bytes(StagePlan(config, stage))
        assert found == sum(expected), (rank, found, expected)
        assert found < sum(kept_bytes(StagePlan(plain, stage)))


OF_MLP = "--recompute-granularity selective --recompute-modules mlp"


@pytest.mark.parametrize(
    ("model", "recompute"),
    [
        ("gpt", OF_MLP),
        ("llama", r"--select-recompute ['mlp\\.linear_fc1']"),
        ("gpt", f"{FP32_RESIDUAL} {OF_MLP}"),
        ("gpt", f"{FP32_RESIDUAL} {OF_MLP} {NORMS_KEPT}"),
        ("llama", rf"--select-recompute ['self_attention'] {NORMS_KEPT}"),
        (LATENT, UP_PROJECTIONS),
    ],
)
def test_what_a_second_run_keeps(model, recompute):
    """`kept_by_second_run` equals, to the byte, what a part that is computed again in the backward adds to memory, plus
    the hidden states that the part returns: a norm's result at its beginning counts if it is made again or kept in
    another type."""
    flags = f"{SIZES} {FAMILIES[model]} {recompute}"
    config = config_of(flags, 1).model_config
    micro_batch, stack = MicroBatch.of(config), stage_chunks(config, 0)[0].decoder.layers
    (_, layer), asked = stack.layers[0], stack.recompute.layers[0]
    again = kept_by_second_run([layer], micro_batch, asked, slices=False)
    gives_hidden_states = not {"mlp.linear_fc1", "self_attention.up_projections"} & {*asked.modules}
    result = micro_batch.tokens * config.hidden_size * micro_batch.item_size * gives_hidden_states
    assert run(1, measured_of_second_run, flags) == [again + result]


def test_a_layer_keeps_what_the_literature_says():
    """A layer in 16 bit with f = 4 h keeps 32 s b h bytes: the 34 of Korthikanti et al. (2022, section 4.1) without
    scores of s x s, less two dropout masks of a byte, which are made again; besides, float32 statistics of norms and
    scores."""
    config = config_of(f"{SIZES} --bf16", 1).model_config
    micro_batch = MicroBatch.of(config)
    tokens = 2 * 128
    kept = Layer.of(config, 0).kept_bytes(micro_batch)
    assert sum(kept.values()) == 32 * tokens * 64 + tokens * (2 * 2 + 2 * 8) * 4
    assert kept["mlp.activation"] == 8 * tokens * 64


def test_kept_bytes_name_the_module_that_keeps_them():
    """The keys of `kept_bytes` are submodules of the built model or parts of them, as recomputation names them."""
    config = config_of(f"{SIZES} --pipeline-model-parallel-size 2", 2).model_config
    names = {name for chunk in stage_chunks(config, 1) for name in chunk.kept_bytes(MicroBatch.of(config))}
    layer = {"input_layernorm", "pre_mlp_layernorm", "mlp.linear_fc1", "mlp.activation", "mlp.linear_fc2"}
    layer |= {f"self_attention.{part}" for part in ("linear_qkv", "core_attention", "linear_proj")}
    assert names == {f"decoder.layers.{number}.{part}" for number in (2, 3) for part in layer} | {
        "decoder.final_layernorm",
        "output_layer",
        "loss",
    }


@pytest.mark.parametrize(
    ("more", "dropped"),
    [
        ("", True),
        ("--kernels ops", False),
        ("--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1", False),
        (r"--select-recompute-exclude ['mlp\\.activation','.*_layernorm']", False),
        (r"--select-recompute ['self_attention\\.core_attention']", True),
    ],
)
def test_where_outputs_of_norms_and_activations_are_not_kept(more, dropped):
    """Outputs of norms and activations, which are the inputs of linears, are not kept by default on a CPU, except with
    `--kernels ops`, with a schedule that computes weight gradients later, and where the user excludes them; the user
    did not ask, so the log has no line about it."""
    config = config_of(f"{SIZES} {more}", 2 if "pipeline" in more else 1).model_config
    (chunk,) = stage_chunks(config, 0)
    kept = chunk.kept_bytes(MicroBatch.of(config))
    for linear in ("self_attention.linear_qkv", "mlp.linear_fc1", "mlp.linear_fc2"):
        assert (kept[f"decoder.layers.0.{linear}"] == 0) is dropped, linear
    is_asked_for = "--select-recompute " in more
    assert all(layer.is_asked_for is is_asked_for for layer in chunk.decoder.layers.recompute.layers)
