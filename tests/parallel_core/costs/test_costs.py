"""Predicted messages and floating-point operations: bytes against those that the collectives count in a run, operations
against published formulas."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from parallel_core.blocks import Layer, MicroBatch
from parallel_core.blocks.experts import Experts
from parallel_core.costs import StagePlan, step_traffic, training_flops
from parallel_core.topology import KINDS, Topology
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES, STREAMS
from tests.support.layouts import Rows

TP2, TP2_SP = "--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --sequence-parallel"
PP2, RING2 = "--pipeline-model-parallel-size 2", "--context-parallel-size 2"
SHARDED = "--use-distributed-optimizer"


def counted(backend, flags: str) -> dict:
    """(ranks of the group, operation) -> (calls, bytes) that this rank's collectives counted in the last step of a
    run."""
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)
    found = {}

    class Recorder(Callback):
        def on_train_begin(self, state):
            backend.trace.reset()

        def on_step_end(self, state):
            counts = backend.trace.counts
            found.clear()
            found.update({key: (count.calls, count.bytes) for key, count in counts.items() if count.bytes})
            backend.trace.reset()

    with job(backend, config), pytest.MonkeyPatch.context() as patch:
        for group in all_groups(backend):
            patch.setattr(group, "name", group.ranks)
        pretrain(
            lambda samples: (Rows(), None, None),
            lambda **ends: GPTModel(config.model_config, **ends),
            all_config=config,
            callbacks=[Recorder()],
        )
    return found


def all_groups(backend) -> list:
    """This rank's process groups; in a reused process of the pool they may still have the names that an earlier job
    gave them."""
    from pynative.parallel_state import get_topology

    topology = get_topology()
    kinds = [kind for kind in KINDS if topology.is_member(kind, backend.rank)]
    return [backend.world, *(backend.group(topology.group(kind, backend.rank), kind) for kind in kinds)]


def predicted(flags: str, world_size: int, rank: int) -> dict:
    """(ranks of the group, operation) -> (calls, bytes) of a rank's step by the formulas, to compare with `counted`."""
    config = config_of(flags, world_size)
    parallel = config.parallel_config
    topology = Topology(
        world_size=world_size,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size,
        expert_tensor_parallel_size=parallel.expert_tensor_parallel_size,
        context_parallel_algo=parallel.context_parallel_algo,
        ulysses_degree_in_cp=parallel.ulysses_degree_in_cp,
        num_distributed_optimizer_instances=parallel.num_distributed_optimizer_instances,
        order=parallel.rank_order,
    )
    calls, sent = Counter(), Counter()
    replica = topology.group("dp-cp", rank).index(rank)
    for message in step_traffic(StagePlan(config, topology.dense.coordinate("pp", rank), replica)):
        ranks = tuple(range(world_size)) if message.kind == "world" else topology.group(message.kind, rank)
        calls[ranks, message.operation] += message.calls
        sent[ranks, message.operation] += message.calls * message.bytes
    return {key: (calls[key], sent[key]) for key in calls}


EXPERTS = (
    "--num-experts 4 --moe-router-topk 2 --moe-router-load-balancing-type none --expert-model-parallel-size 2 "
    "--moe-token-dispatcher-type"
)
PADDED = f"{EXPERTS} alltoall --moe-expert-capacity-factor 1 --moe-pad-expert-input-to-capacity"
"""Experts padded to their capacity: each has as many rows, whatever the router says."""
LOSSES = (
    "--moe-router-load-balancing-type aux_loss seq_aux_loss global_aux_loss --moe-aux-loss-coeff 0.1 0.1 0.1 "
    "--moe-router-num-groups 2 --moe-router-group-topk 1 --moe-device-level-aux-loss-coeff 0.1 "
    "--moe-comm-aux-loss-coeff 0.1 --moe-z-loss-coeff 0.1"
)
HOT = "--hot-expert-num 4 --train-iters 1 --mtp-num-layers 1"
"""All 4 experts are hot, so that each rank has a copy of each: only numbers of rows are sent, no tokens."""
ADAPTERS = "--lora-r 4 --lora-target-modules linear_proj linear_fc1"
LAYOUTS = [
    (
        4,
        f"{PADDED} {TP2_SP} {LOSSES} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        FAMILIES["llama"],
    ),
    (4, f"{PADDED} {RING2} {LOSSES} {HOT}", FAMILIES["llama"]),
    (2, PADDED, FAMILIES["llama"]),
    (2, f"{EXPERTS} allgather", FAMILIES["llama"]),
    (2, TP2, ""),
    (4, f"{TP2_SP} {PP2} {ADAPTERS}", FAMILIES["llama"]),
    (4, f"{TP2} {SHARDED} {ADAPTERS}", ""),
    (2, TP2_SP, ""),
    (2, TP2, FAMILIES["two tokens further"]),
    (4, f"{TP2_SP} {PP2}", f"{FAMILIES['two tokens further']} {STREAMS}"),
    (4, f"{RING2} {PP2} {SHARDED}", f"{FAMILIES['two tokens further']} --untie-embeddings-and-output-weights"),
    (4, "--tensor-model-parallel-size 4 --sequence-parallel", ""),
    (2, TP2_SP, FAMILIES["llama"]),
    (2, f"{TP2} --optimizer muon", FAMILIES["llama"]),
    (2, f"{TP2} --optimizer muon --muon-tp-mode distributed", FAMILIES["llama"]),
    (2, f"{SHARDED} --optimizer muon", ""),
    (2, TP2, FAMILIES["latent attention, compressed queries"]),
    (4, f"{RING2} {TP2_SP}", FAMILIES["latent attention"]),
    (4, f"{RING2} {TP2_SP}", FAMILIES["gated delta net"]),
    (4, f"{RING2} {TP2_SP}", FAMILIES["lightning attention"]),
    (4, f"{RING2} {TP2_SP}", FAMILIES["state spaces"]),
    (4, f"{RING2} --context-parallel-algo ulysses_cp_algo {TP2_SP}", FAMILIES["latent attention, compressed queries"]),
    (4, "--tensor-model-parallel-size 4", FAMILIES["llama"]),
    (2, TP2_SP, f"{FAMILIES['llama']} --qk-layernorm --qk-norm-type per_layer"),
    (2, TP2, f"{FAMILIES['llama']} --num-experts 4 --moe-shortcut-connected"),
    (2, TP2_SP, FAMILIES["head norms, part of the head turns"]),
    (2, f"{TP2_SP} --hidden-size 40", FAMILIES["sandwich norm"]),
    (2, PP2, ""),
    (4, f"{TP2_SP} {PP2}", f"{FAMILIES['sparse attention']} --dsa-indexer-topk-freq 4 --num-layers 4"),
    (4, f"{RING2} {TP2_SP}", FAMILIES["sparse attention"]),
    (
        2,
        f"{RING2} --context-parallel-algo ulysses_cp_algo",
        f"{FAMILIES['sparse attention']} --dsa-indexer-topk-freq 2",
    ),
    (2, PP2, "--untie-embeddings-and-output-weights --num-layers 3"),
    (2, "", ""),
    (4, "", FAMILIES["llama"]),
    (4, f"{TP2} {PP2}", ""),
    (4, TP2_SP, FAMILIES["llama"]),
    (4, f"{TP2_SP} {PP2}", ""),
    (2, f"{PP2} --virtual-pipeline-model-parallel-size 2 --num-layers 4", ""),
    (2, f"{PP2} --pipeline-schedule zb-h1", FAMILIES["llama"]),
    (2, f"{PP2} --pipeline-schedule zb-v --num-layers 4 --untie-embeddings-and-output-weights", ""),
    (2, f"{PP2} --variable-seq-lengths", FAMILIES["llama"]),
    (2, f"{PP2} --num-layers 4 --noop-layers 3", ""),
    (2, f"{PP2} --standalone-embedding-stage", "--untie-embeddings-and-output-weights"),
    (4, f"{PP2} --use-tp-pp-dp-mapping", ""),
    (2, RING2, ""),
    (2, RING2, FAMILIES["llama"]),
    (4, "--context-parallel-size 4", FAMILIES["llama"]),
    (2, f"{RING2} --context-parallel-algo ulysses_cp_algo", FAMILIES["llama"]),
    (4, "--context-parallel-size 4 --context-parallel-algo ulysses_cp_algo", FAMILIES["llama"]),
    (
        4,
        "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2",
        FAMILIES["llama"],
    ),
    (4, f"{RING2} {TP2_SP}", FAMILIES["llama"]),
    (4, f"{RING2} {PP2}", ""),
    (4, f"{RING2} --context-parallel-algo ulysses_cp_algo {TP2}", FAMILIES["llama"]),
    (2, SHARDED, FAMILIES["llama"]),
    (4, f"{SHARDED} {TP2_SP} --bf16", ""),
    (4, f"{SHARDED} {PP2}", ""),
    (4, f"{SHARDED} {RING2} --num-distributed-optimizer-instances 2", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "layout", "family"), LAYOUTS)
def test_every_byte_of_a_step_is_predicted(world, layout, family):
    """Calls and bytes of each group and operation in a step of two micro-batches equal the predicted ones exactly, on
    each rank, and no message is sent that is not predicted."""
    flags = f"{TINY} {family} {layout} --global-batch-size"
    replicas = config_of(f"{flags} 8", world).parallel_config.data_parallel_size
    flags = f"{flags} {4 * replicas}"
    for rank, found in enumerate(run(world, counted, flags)):
        assert found == predicted(flags, world, rank), rank


ZERO = [
    (2, "--zero-stage 2", ""),
    (2, "--zero-stage 3 --num-nextn-predict-layers 2", "--position-embedding-type rope"),
    (2, "--zero-stage 3", FAMILIES["llama"]),
    (2, "--zero-stage 3 --no-parallel-optimizer-comm-recompute", FAMILIES["llama"]),
    (4, f"--zero-stage 3 {TP2_SP}", ""),
    (4, f"--zero-stage 2 {PP2}", "--communication-data-type bf16"),
    (2, "--zero-stage 3", f"{FAMILIES['two tokens further']} --recompute-granularity full "
     "--recompute-method uniform --recompute-num-layers 1"),
    (2, f"--zero-stage 3 {RING2} --num-layers 5", "--recompute-granularity full --recompute-method uniform "
     "--recompute-num-layers 2"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("world", "layout", "family"), ZERO)
def test_zero_sends_what_is_predicted(world, layout, family):
    """Messages with ZeRO 2 and 3 equal the predicted ones: gradients are reduced in every micro-batch, and a cell's
    weights gathered when another cell's are in its slot."""
    test_every_byte_of_a_step_is_predicted(world, layout, family)


FULL = "--recompute-granularity full --recompute-method"
RECOMPUTED = [
    (2, TP2, f"{FULL} uniform --recompute-num-layers 2 --recompute-slice-activation"),
    (2, TP2, f"{FULL} block --recompute-num-layers 1 --attention-dropout 0.1"),
    (2, TP2, "--recompute [1] --no-mp-comm-recompute"),
    (2, TP2_SP, "--recompute [2] --recompute-slice-activation"),
    (2, TP2_SP, r"--recompute [1] --no-mp-comm-recompute --select-comm-recompute ['ffn_norm\\.norm']"),
    (2, TP2_SP, "--recompute-granularity selective --recompute-modules layernorm mlp core_attn"),
    (2, TP2_SP, r"--no-mp-comm-recompute --select-recompute ['mlp\\.linear_fc1','self_attention']"),
    (4, "--tensor-model-parallel-size 4", f"{FAMILIES['llama']} --recompute True"),
    (2, TP2, f"{FAMILIES['two tokens further']} --recompute-granularity full --recompute-method uniform "
     "--recompute-num-layers 2 --recompute-slice-activation"),
    (2, TP2_SP, f"{FAMILIES['two tokens further']} --recompute-activations --recompute-modules mlp layernorm"),
    (2, TP2_SP, f"{FAMILIES['sparse attention']} --recompute [1]"),
    (2, RING2, f"{FAMILIES['gated delta net']} --recompute-activations"),
    (2, RING2, "--recompute [2]"),
    (2, f"{RING2} --context-parallel-algo ulysses_cp_algo", "--recompute-activations"),
    (4, f"{TP2_SP} {PP2} --fp32-residual-connection --bf16", "--recompute [0,1]"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("world", "layout", "recompute"), RECOMPUTED)
def test_what_is_sent_again_is_predicted(world, layout, recompute):
    """Messages with recomputation of whole layers and of parts equal the predicted ones, whether the collectives of the
    forward are repeated or their results kept."""
    test_every_byte_of_a_step_is_predicted(world, layout, recompute)


def layer_bytes(flags: str, world_size: int, kind: str = "tp") -> int:
    """Bytes that a rank sends over groups of `kind` for the first layer and one micro-batch, forward and backward."""
    config = config_of(f"{TINY} {flags}", world_size).model_config
    messages = Layer.of(config, 0).messages(MicroBatch.of(config))
    return sum(one.bytes * one.calls for one in messages if one.kind == kind)


def test_the_papers_figures():
    """Bytes of one layer of float32: tensor parallelism sends 8 (t-1)/t s b h elements and sequence parallelism 10; a
    ring of n sends, in each of n - 1 steps, keys and values twice and their gradients once; Ulysses exchanges queries,
    keys, values and results, forward and backward, less the part that stays."""
    a = 16 * 2 * 32 * 4
    assert layer_bytes(TP2, 2) == 8 * a // 2
    assert layer_bytes(TP2_SP, 2) == 10 * a // 2
    assert layer_bytes("--tensor-model-parallel-size 4", 4) == 8 * a * 3 // 4
    ring = layer_bytes("--context-parallel-size 4", 4, "cp-ring")
    assert ring == 3 * 3 * 2 * a // 4
    ulysses = layer_bytes("--context-parallel-size 4 --context-parallel-algo ulysses_cp_algo", 4, "cp-ulysses")
    assert ulysses == 2 * (3 + 1) * (a // 4) * 3 // 4
    assert layer_bytes("", 1) == layer_bytes("", 1, "cp-ring") == layer_bytes("", 1, "cp-ulysses") == 0


def test_every_message_names_what_launches_it():
    """A predicted message's `what` is the module that sends it, or a word for an operation of no module, such as
    "gradient norm"; the first and the last stage have their own."""
    config = config_of(f"{TINY} {TP2_SP} {PP2} {RING2} --global-batch-size 8", 8)
    first, last = ({message.what for message in step_traffic(StagePlan(config, stage))} for stage in (0, 1))
    layer = {"self_attention.linear_qkv", "self_attention.core_attention", "self_attention.linear_proj"}
    layer |= {"mlp.linear_fc1", "mlp.linear_fc2"}
    common = {"pipeline", "gradients", "partial gradients", "tied embedding", "gradient norm", "loss report"}
    common |= {f"decoder.layers.{module}" for module in layer}
    assert first == common | {"embedding"}
    assert last == common | {"output_layer", "loss", "loss.mean"}
    assert np.all([message.bytes > 0 for message in step_traffic(StagePlan(config, 0))])


def test_backward_messages_are_known():
    """Two of the four all-reduces of a layer with tensor parallelism are marked as the backward's; the forward's are
    those that recomputation repeats."""
    config = config_of(f"{TINY} {TP2}", 2).model_config
    messages = list(Layer.of(config, 0).messages(MicroBatch.of(config)))
    assert [one.backward for one in messages].count(False) == [one.backward for one in messages].count(True) == 2


def test_layers_that_do_nothing_are_no_operations():
    """`training_flops` does not count the layers of --noop-layers."""
    with_noops = config_of(f"{TINY} --num-layers 4 --noop-layers 1,2", 1).model_config
    assert training_flops(with_noops, 3) == training_flops(config_of(f"{TINY} --num-layers 2", 1).model_config, 3)


def test_flops_are_those_of_megatrons_formula():
    """`training_flops` of a sequence equals 72 s l h^2 (1 + s/(6h) + V/(12 h l)), forward and backward with f = 4 h
    (Narayanan et al., 2021, appendix, without recomputation)."""
    config = config_of(f"{TINY} --num-layers 6", 1).model_config
    h, s, layers, v = 32, 16, 6, 64
    formula = 72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert training_flops(config, 1) == pytest.approx(formula)


def test_frozen_weights_have_no_gradient():
    """Adapters of rank r on linear_qkv make the operations per token fewer by the frozen weights' gradients, 2 (12 l
    h^2 + h v), and more by the adapters' own, 6 l r (h + 3 h)."""
    plain, adapted = (
        config_of(f"{TINY} {more}", 1).model_config for more in ("", "--lora-r 4 --lora-target-modules linear_qkv")
    )
    h, s, layers, v, rank = 32, 16, 2, 64, 4
    frozen = 2 * (layers * 12 * h**2 + h * v)
    assert training_flops(adapted, 1) == training_flops(plain, 1) + s * (6 * layers * rank * 4 * h - frozen)


def test_a_gated_activation_has_a_third_product():
    """A gated feed-forward block counts three products of 2 h f operations a token, a plain one two; each three times
    for forward and backward."""
    gated, plain = (config_of(f"{TINY} {flags} --ffn-hidden-size 64", 1).model_config for flags in ("--swiglu", ""))
    assert training_flops(gated, 1) - training_flops(plain, 1) == 3 * plain.seq_length * 2 * 2 * 32 * 64


@pytest.mark.parametrize(("expert_tensor", "gathered"), [(1, 0), (2, 8)])
def test_matrices_of_experts_are_gathered_over_their_own_group(expert_tensor, gathered):
    """Muon gathers an expert's two matrices over the expert-tensor-parallel group, which has no messages where it has
    one rank; the dense ones of a layer over the tensor-parallel group."""
    experts = f"--num-experts 2 --expert-tensor-parallel-size {expert_tensor}"
    config = config_of(f"{TINY} {TP2_SP} {experts} --optimizer muon --muon-tp-mode duplicated", 2)
    calls = Counter()
    for one in step_traffic(StagePlan(config, 0)):
        calls[one.kind] += one.calls * (one.what == "direction of a matrix")
    assert (calls["tp"], calls["expert-tp"]) == (4, gathered)


def test_part_of_a_tokens_choices_is_counted():
    """Two thirds of one choice among 4 experts and 2 that do nothing are counted as FLOPs of experts."""
    config = config_of(f"{TINY} --num-experts 4 --moe-router-topk 1 --moe-router-pre-softmax", 1).model_config
    experts = Experts.of(config)
    all_real, some = (replace(experts, zero=zero).forward_flops(1, 16) for zero in (0, 2))
    assert some == pytest.approx(all_real * 2 / 3) and all_real == experts.expert.forward_flops(1, 16)
