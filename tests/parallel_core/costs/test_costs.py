"""Formulas against the machine: the parameters that a model has, and the bytes that its collectives count."""

from collections import Counter

import numpy as np
import pytest

from parallel_core.costs import buffer_elements, stage_parameters, step_traffic, training_flops
from parallel_core.costs.traffic import TrafficModel
from parallel_core.topology import KINDS, Topology
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES
from tests.support.layouts import Rows

TP2, TP2_SP = "--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --sequence-parallel"
PP2, RING2 = "--pipeline-model-parallel-size 2", "--context-parallel-size 2"


def built(backend, flags: str) -> tuple[list, int]:
    """The shards of this rank's model, in its order, and the size of its flat buffer."""
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
        return [parameter.meta.spec for parameter in parameters], ParamAndGradBuffers(parameters).size


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", [TP2_SP, f"{PP2} --hidden-size 40 --kv-channels 8"])
def test_the_plan_knows_every_parameter(family, layout):
    """Names, shapes, cuts and shared gradients, on every rank; 40 does not fill the buffer's last cache lines."""
    flags = f"{TINY} {FAMILIES[family]} {layout}"
    config = config_of(flags, 2)
    for rank, (shards, size) in enumerate(run(2, built, flags)):
        stage = rank if layout != TP2_SP else 0
        assert sorted(stage_parameters(config, stage), key=str) == sorted(shards, key=str)
        assert buffer_elements(config, stage) == size


def counted(backend, flags: str) -> dict:
    """(group's ranks, operation) -> (calls, bytes) of this rank's second step."""
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)
    found = {}

    class Recorder(Callback):
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
    """This rank's groups; in a pool's process they may still have the names that an earlier job gave them."""
    from pynative.parallel_state import get_topology

    topology = get_topology()
    kinds = [kind for kind in KINDS if topology.is_member(kind, backend.rank)]
    return [backend.world, *(backend.group(topology.group(kind, backend.rank), kind) for kind in kinds)]


def predicted(flags: str, world_size: int, rank: int) -> dict:
    """The same from the formulas."""
    config = config_of(flags, world_size)
    parallel = config.parallel_config
    topology = Topology(
        world_size=world_size,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        context_parallel_algo=parallel.context_parallel_algo,
        ulysses_degree_in_cp=parallel.ulysses_degree_in_cp,
        order=parallel.rank_order,
    )
    calls, sent = Counter(), Counter()
    for message in step_traffic(config, topology.dense.coordinate("pp", rank)):
        ranks = tuple(range(world_size)) if message.kind == "world" else topology.group(message.kind, rank)
        calls[ranks, message.operation] += message.calls
        sent[ranks, message.operation] += message.calls * message.bytes
    return {key: (calls[key], sent[key]) for key in calls}


LAYOUTS = [
    (2, TP2, ""),
    (2, TP2_SP, ""),
    (4, "--tensor-model-parallel-size 4 --sequence-parallel", ""),
    (2, TP2_SP, FAMILIES["llama"]),
    (4, "--tensor-model-parallel-size 4", FAMILIES["llama"]),
    (2, TP2_SP, FAMILIES["head norms, part of the head turns"]),
    (2, f"{TP2_SP} --hidden-size 40", FAMILIES["sandwich norm"]),
    (2, PP2, ""),
    (2, PP2, "--untie-embeddings-and-output-weights --num-layers 3"),
    (2, "", ""),
    (4, "", FAMILIES["llama"]),
    (4, f"{TP2} {PP2}", ""),
    (4, TP2_SP, FAMILIES["llama"]),
    (4, f"{TP2_SP} {PP2}", ""),
    (2, f"{PP2} --virtual-pipeline-model-parallel-size 2 --num-layers 4", ""),
    (2, f"{PP2} --pipeline-schedule zb-h1", FAMILIES["llama"]),
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
]


@pytest.mark.parametrize(("world", "layout", "family"), LAYOUTS)
def test_every_byte_of_a_step_is_predicted(world, layout, family):
    """Calls and bytes of each group and operation on each rank: no call that no formula has, error 0."""
    flags = f"{TINY} --global-batch-size 8 {family} {layout}"
    for rank, found in enumerate(run(world, counted, flags)):
        assert found == predicted(flags, world, rank), rank


def layer_bytes(flags: str, world_size: int, what: str = "layer") -> int:
    """Bytes of the parts that are called `what`, of one layer and micro-batch."""
    return sum(
        m.bytes * m.calls for m in TrafficModel(config_of(f"{TINY} {flags}", world_size)).layer() if m.what == what
    )


def test_the_papers_figures():
    """Of one layer: 8 (t-1)/t s b h of tensor parallelism, which sequence parallelism adds two gathers to; a ring
    sends keys and values on twice and their gradients once; Ulysses four times what a rank holds, less its share."""
    a = 16 * 2 * 32 * 4
    assert layer_bytes(TP2, 2) == 8 * a // 2
    assert layer_bytes(TP2_SP, 2) == 10 * a // 2
    assert layer_bytes("--tensor-model-parallel-size 4", 4) == 8 * a * 3 // 4
    ring = layer_bytes("--context-parallel-size 4", 4, "ring")
    assert ring == 3 * 3 * 2 * a // 4
    ulysses = layer_bytes("--context-parallel-size 4 --context-parallel-algo ulysses_cp_algo", 4, "ulysses")
    assert ulysses == 2 * (3 + 1) * (a // 4) * 3 // 4
    assert layer_bytes("", 1) == layer_bytes("", 1, "ring") == layer_bytes("", 1, "ulysses") == 0


def test_what_is_not_in_a_layer_is_named():
    """So that a step's traffic can be read: the extras have names of their own."""
    config = config_of(f"{TINY} {TP2_SP} {PP2} {RING2} --global-batch-size 8", 8)
    first, last = ({message.what for message in step_traffic(config, stage)} for stage in (0, 1))
    common = {
        "layer",
        "pipeline",
        "gradients",
        "shared gradients",
        "tied embedding",
        "gradient norm",
        "loss report",
        "ring",
    }
    assert first == common | {"embedding"} and last == common | {"head", "cross entropy", "loss"}
    assert np.all([message.bytes > 0 for message in step_traffic(config, 0)])


def test_layers_that_do_nothing_are_no_operations():
    """The log's TFLOP/s don't count what --noop-layers leaves out."""
    with_noops = config_of(f"{TINY} --num-layers 4 --noop-layers 1,2", 1).model_config
    assert training_flops(with_noops, 3) == training_flops(config_of(f"{TINY} --num-layers 2", 1).model_config, 3)
