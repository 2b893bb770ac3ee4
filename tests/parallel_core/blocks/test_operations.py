"""The operations of a layer, which the planner times, beside its floating-point operations, which MFU counts."""

import pytest

from parallel_core.blocks import Layer, MicroBatch, blocks_within
from parallel_core.blocks.language_model import chunk_of
from parallel_core.blocks.recurrence import Recurrence
from parallel_core.blocks.sparse_attention import SparseAttention, loss_blocks
from parallel_core.operations import NOTHING
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_have_the_layers_flops(family):
    """The forwards of a layer's operations on one rank have as many FLOPs together as `forward_flops` says; where a
    layer has a recurrence, whose chunks multiply more than the formula needs, no fewer."""
    config = config_of(f"{TINY} --num-layers 2 {FAMILIES[family]}", 1).model_config
    micro_batch = MicroBatch.of(config)
    for number in range(2):
        layer = Layer.of(config, number)
        planned = sum(one.forward.flops for one in layer.operations(micro_batch))
        wanted = layer.forward_flops(micro_batch.tokens, config.seq_length)
        if any(blocks_within(layer, Recurrence)):
            assert wanted <= planned < 2 * wanted
        else:
            assert planned == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("family", ["llama", "experts"])
def test_operations_of_adapters(family):
    """A model with adapters has the products of both factors of each, in experts, too, with gradients of their weights;
    they read and write memory as other products do."""
    lora = "--lora-r 3 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"
    config = config_of(f"{TINY} --num-layers 2 {FAMILIES[family]} {lora}", 1).model_config
    decoder, micro_batch = chunk_of(config, 0).decoder, MicroBatch.of(config)
    operations = [*decoder.operations(micro_batch)]
    wanted = decoder.forward_flops(micro_batch.tokens, config.seq_length)
    assert sum(one.forward.flops for one in operations) == pytest.approx(wanted, rel=1e-9)
    factors = [one for one in operations if one.name.endswith(("lora_a", "lora_b"))]
    assert factors and all(one.weight.flops == one.forward.flops and one.forward.bytes for one in factors)


@pytest.mark.parametrize(
    ("more", "linears"),
    [
        ("", {"linear_qkv": 96, "linear_proj": 32, "linear_fc1": 128, "linear_fc2": 32}),
        ("--tensor-model-parallel-size 2", {"linear_qkv": 48, "linear_proj": 32, "linear_fc1": 64, "linear_fc2": 32}),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel",
            {"linear_qkv": 48, "linear_proj": 16, "linear_fc1": 64, "linear_fc2": 16},
        ),
        ("--disable-bias-linear", {}),
        ("--lora-r 3 --lora-target-modules linear_qkv", {}),
    ],
)
def test_gradients_of_biases_are_sums_over_rows(more, linears):
    """For each trained bias the backward reads the gradient of the linear's output once, without a launch: as many
    elements as a rank has tokens times features; with sequence parallelism it has half of the tokens behind a
    row-parallel linear. Without biases, and where they are frozen, there is no such operation."""
    config = config_of(f"{TINY} --num-layers 1 {more}", 2).model_config
    micro_batch = MicroBatch.of(config)
    decoder = chunk_of(config, 0).decoder
    operations = [one for one in decoder.operations(micro_batch) if one.name.endswith(".bias")]
    found = {one.name.split(".")[-2]: one.backward.bytes / micro_batch.tokens / 4 for one in operations}
    assert found == linears
    assert all(one.forward == one.weight == NOTHING and not one.backward.launches for one in operations)


def test_biases_of_experts_are_passes_of_their_own():
    """Each bias of an expert is added in a pass that reads and writes its rows; the backward reads their gradient."""
    config = config_of(f"{TINY} --num-layers 1 {FAMILIES['experts']} --add-bias-linear", 1).model_config
    biases = [one for one in Layer.of(config, 0).operations(MicroBatch.of(config)) if one.name.endswith("experts.bias")]
    assert len(biases) == 2 and all(one.forward.bytes == 2 * one.backward.bytes > 0 for one in biases)


FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


@pytest.mark.parametrize("recompute", ["", FULL])
def test_operations_of_further_tokens(recompute):
    """The operations of multi-token prediction have the FLOPs of `forward_flops`; each depth sweeps embeddings, logits
    and loss; where a depth runs again, embedding, final norm, output layer and loss do not."""
    config = config_of(f"{TINY} --num-layers 2 {FAMILIES['two tokens further']} {recompute}", 1).model_config
    depths, micro_batch = chunk_of(config, 0).mtp, MicroBatch.of(config)
    operations = [(*one.name.split(".")[1:3], one) for one in depths.operations(micro_batch)]
    wanted = depths.forward_flops(micro_batch.tokens, config.seq_length)
    assert sum(one.forward.flops for *_, one in operations) == pytest.approx(wanted, rel=1e-9)
    inner, ends = {"enorm", "hnorm", "eh_proj", "transformer_layer"}, {"embedding", "output_layer", "loss"}
    for depth in ("0", "1"):
        assert {part for number, part, _ in operations if number == depth} == inner | ends | {"final_layernorm"}
        again = {part for number, part, one in operations if number == depth and one.runs_again}
        assert again == (inner if recompute else set())


def test_every_block_of_an_indexers_loss_is_counted():
    """With 1200 tokens in a ring of two, one rank has four blocks of the indexer's loss and the other three: the bytes
    that they send are the mean of all, in four messages."""
    sizes = "--seq-length 1200 --max-position-embeddings 1200 --tensor-model-parallel-size 2 --context-parallel-size 2"
    config = config_of(f"{TINY} {sizes} {FAMILIES['sparse attention']}", 4).model_config
    (core,) = blocks_within(Layer.of(config, 0), SparseAttention)
    micro_batch = MicroBatch.of(config)
    sums = [one.bytes for one in core.messages(micro_batch) if one.operation == "all_reduce" and one.backward]
    layout = micro_batch.context
    ranks = [loss_blocks(layout, layout.positions(1200, rank)) for rank in range(2)]
    assert [len(blocks) for blocks in ranks] == [4, 3] and len(sums) == 4
    scores = sum(len(queries.rows) * queries.positions.stop for blocks in ranks for queries in blocks)
    assert sum(sums) == micro_batch.batch * scores * 4 // 2
