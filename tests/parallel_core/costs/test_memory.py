"""A rank's bytes by the formulas against those that a run allocates and keeps."""

import gc
import tracemalloc

import numpy as np
import pytest

from parallel_core.costs import MemoryBytes, StagePlan, memory, peak_kept_bytes
from tests.parallel_core.blocks.test_kept_bytes import SIZES, traced_bytes
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES


def memory_of(flags: str, ranks: int = 1) -> MemoryBytes:
    """The predicted memory of a rank of the first stage."""
    return memory(StagePlan(config_of(flags, ranks), 0))


class Rows:
    """A data set of 16 samples of 128 random tokens, the length that SIZES says."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict:
        tokens = np.random.default_rng(i).integers(0, 500, 129, np.int32)
        positions, ones = np.arange(128, dtype=np.int32), np.ones(128, np.float32)
        return {"tokens": tokens[:-1], "labels": tokens[1:], "loss_mask": ones, "position_ids": positions}


def sent_bytes(tensors) -> int:
    """Bytes of the tensors (or None) that a stage received or gives to others."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def peak_of_a_step(backend, flags: str) -> int:
    """The most bytes that this rank's arrays hold in the second step, looked at between the schedule's computations and
    after each second run of a recomputed part."""
    from pynative.pipeline_parallel.stage import Stage
    from pynative.tensor_parallel import recompute
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config, found = config_of(f"{flags} --train-iters 2", backend.world_size), []
    compute, run_again = Stage.compute, recompute._Run._run_again

    def computed(stage, action, received):
        if tracemalloc.is_tracing() and not found:
            found.append(traced_bytes() - sent_bytes(received))
        result = compute(stage, action, received)
        if tracemalloc.is_tracing():
            found.append(traced_bytes() - sent_bytes(result))
        return result

    def ran_again(part):
        run_again(part)
        if tracemalloc.is_tracing():
            found.append(traced_bytes())

    class Second(Callback):
        def on_step_end(self, state):
            tracemalloc.stop() if state.iteration == 2 else tracemalloc.start()

    with job(backend, config), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "compute", computed)
        patch.setattr(recompute._Run, "_run_again", ran_again)
        pretrain(
            lambda samples: (Rows(), None, None),
            lambda **ends: GPTModel(config.model_config, **ends),
            all_config=config,
            callbacks=[Second()],
        )
    return max(found) - found[0]


PP2 = "--pipeline-model-parallel-size 2"
TP2_SP = "--tensor-model-parallel-size 2 --sequence-parallel"
FULL = "--recompute-granularity full --recompute-method"
LAYOUTS = [
    (1, "gpt", ""),
    (1, "llama", f"{FULL} uniform --recompute-num-layers 1"),
    (2, "llama", f"{TP2_SP} {FULL} uniform --recompute-num-layers 2"),
    (2, "gpt", "--context-parallel-size 2 --recompute-granularity selective --recompute-modules mlp"),
    (2, "gpt", PP2),
    (1, "gpt", "--bf16 --softmax-type off-by-one"),
    (1, "llama", "--num-experts 4 --moe-shortcut-connected --recompute-granularity selective --recompute-modules mlp"),
    (2, "llama", f"{TP2_SP} --softmax-type learnable"),
    (2, "llama", f"{TP2_SP} --qk-layernorm --qk-norm-type per_layer --no-pre-norm --use-sandwich-norm"),
    (2, "llama", f"{TP2_SP} --lora-r 8 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"),
    (1, "gpt", "--lora-r 8 --lora-target-modules linear_qkv"),
    (2, "llama", f"{PP2} --virtual-pipeline-model-parallel-size 2 --bf16"),
    (2, "gpt", f"{PP2} --pipeline-schedule zb-h1"),
    (2, "gpt", f"{PP2} --pipeline-schedule zb-v --untie-embeddings-and-output-weights"),
    (2, "gpt", f"{PP2} --pipeline-schedule gpipe --recompute [1,2]"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "model", "layout"), LAYOUTS)
def test_the_most_that_a_stage_keeps(world, model, layout):
    """The predicted peak of activations over all micro-batches of the schedule is within 2% of the measured one, on
    every rank."""
    flags = f"{SIZES} {FAMILIES[model]} --global-batch-size {8 if PP2 in layout else 4} {layout}"
    config = config_of(flags, world)
    for rank, found in enumerate(run(world, peak_of_a_step, flags)):
        stage = rank * config.parallel_config.pipeline_model_parallel_size // world
        predicted = peak_kept_bytes(StagePlan(config, stage))
        assert predicted == pytest.approx(found, rel=0.02), rank


def test_what_is_offloaded_is_not_on_the_device():
    """Activations of n offloaded layers are n times one layer's and are subtracted from the device's total; with no
    offloaded layer they are 0."""
    flags = f"{SIZES} --global-batch-size 8"
    none, one, all_four = (
        memory_of(f"{flags} --cpu-offloading-num-layers {n}").offloaded_activations for n in (0, 1, 4)
    )
    config = config_of(flags, 1)
    assert none == 0 < one
    assert all_four == 4 * one < peak_kept_bytes(StagePlan(config, 0))
    swapped = memory_of(f"{flags} --swap-attention")
    assert 0 < swapped.offloaded_activations < all_four
    assert swapped.total == memory(StagePlan(config, 0)).total - swapped.offloaded_activations


def test_small_tensors_are_not_offloaded():
    """A module's kept bytes count as lying in host memory from --min-offloaded-tensor-size numbers on."""
    modules = "--fine-grained-activation-offloading --offload-modules attn_proj core_attn"
    flags = f"{SIZES} --global-batch-size 8 {modules} --min-offloaded-tensor-size"
    numbers = 2 * 128 * 64  # of the one tensor that attn_proj keeps: rows, length, hidden size
    every, equal, more, none = (
        memory_of(f"{flags} {size}").offloaded_activations for size in (0, numbers, numbers + 1, 1 << 30)
    )
    assert none == 0 < more < every == equal


def test_weights_that_lie_elsewhere_are_not_on_the_device():
    """Weights of which a rank keeps a part (ZeRO 3) are counted apart from the device's total with
    --cpu-offload-params; slots and weights that are kept whole stay on the device."""
    flags = f"{SIZES} --global-batch-size 8 --zero-stage 3 --untie-embeddings-and-output-weights"
    on_device, elsewhere = (memory_of(f"{flags} {more}", 2) for more in ("", "--cpu-offload-params"))
    assert on_device.offloaded_parameters == 0 < elsewhere.offloaded_parameters < elsewhere.parameters
    assert elsewhere.total + elsewhere.offloaded_parameters == on_device.total


@pytest.mark.parametrize("where", ["--cpu-offload-optimizer", "--nvme-path x"])
def test_states_that_lie_elsewhere_are_not_on_the_device(where):
    """--optimizer-offload-fraction 1 counts all optimizer states apart from the device's total, 0 none, and 0.5 half
    or, since a parameter is not cut, somewhat more."""
    flags = f"{SIZES} --bf16 --global-batch-size 8"
    on_device = memory_of(flags)
    found = [memory_of(f"{flags} {where} --optimizer-offload-fraction {f}") for f in (0, 0.5, 1)]
    assert [of.optimizer_states for of in found] == 3 * [on_device.optimizer_states]
    assert [of.total + of.offloaded_states for of in found] == 3 * [on_device.total]
    none, half, whole = (of.offloaded_states for of in found)
    assert (on_device.offloaded_states, none, whole) == (0, 0, on_device.optimizer_states)
    assert whole / 2 <= half < whole


def allocated(backend, flags: str) -> int:
    """Bytes of the flat buffers that a job of one step has made, and of its frozen parameters, on this rank."""
    from pynative.distributed.flat_memory import FlatMemory
    from tests.support.pretraining import pretrain_tiny

    def memories() -> dict[int, FlatMemory]:
        gc.collect()
        return {id(entry): entry for entry in gc.get_objects() if type(entry) is FlatMemory}

    before = memories()
    state = pretrain_tiny(backend, f"{flags} --train-iters 1")
    assert state.iteration == 1
    frozen = sum(parameter.nbytes for parameter in state.model.get_parameters() if not parameter.requires_grad)
    return frozen + sum(entry.bytes for identity, entry in memories().items() if identity not in before)


SHARDED, EP2 = "--use-distributed-optimizer", "--expert-model-parallel-size 2"
ADAPTERS = "--lora-r 4 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"
TRAINED = [
    (1, ""),
    (1, "--bf16 --optimizer sgd"),
    (2, f"--bf16 --optimizer lion {SHARDED}"),
    (2, f"--bf16 {TP2_SP} {SHARDED} {ADAPTERS}"),
    (1, "--bf16 --grad-reduce-in-bf16"),
    (2, "--bf16"),
    (2, f"--bf16 {SHARDED}"),
    (2, f"{SHARDED} --bf16 --params-dtype float32"),
    (2, f"--bf16 {PP2}"),
    (2, f"--bf16 {PP2} {FAMILIES['two tokens further']}"),
    (2, "--bf16 --zero-stage 2"),
    (2, "--bf16 --zero-stage 3"),
    (2, "--bf16 --zero-stage 3 --no-parallel-optimizer-comm-recompute"),
    (2, f"--bf16 {TP2_SP} {FAMILIES['llama']}"),
    (4, f"--bf16 {PP2} {SHARDED}"),
    (4, f"--bf16 {EP2} {SHARDED} {FAMILIES['experts']}"),
    (4, f"--bf16 {EP2} --zero-stage 3 {FAMILIES['experts']}"),
    (4, f"{EP2} {TP2_SP} --expert-tensor-parallel-size 1 {FAMILIES['experts with biases']}"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "flags"), TRAINED)
def test_every_byte_of_parameters_gradients_and_states_is_predicted(world, flags):
    """The predicted bytes of parameters, gradients and optimizer states equal those that a run allocates exactly, on
    every rank."""
    flags = f"{TINY} --global-batch-size {8 if world == 4 else 4} {flags}"
    config = config_of(flags, world)
    stages = config.parallel_config.pipeline_model_parallel_size
    for rank, found in enumerate(run(world, allocated, flags)):
        needed = memory(StagePlan(config, rank * stages // world))
        assert needed.parameters + needed.gradients + needed.optimizer_states == found, rank


def of_a_large_model(flags: str, world: int) -> tuple[int, MemoryBytes]:
    """(number of parameters, predicted memory of a rank) of a model that is so large that padding is negligible."""
    sizes = "--num-layers 4 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000"
    config = config_of(f"{TINY} {sizes} --padded-vocab-size 32000 --global-batch-size 64 {flags}", world)
    weights = 4 * (12 * 4096**2 + 13 * 4096) + (32000 + 16) * 4096 + 2 * 4096
    return weights, memory(StagePlan(config, 0))


@pytest.mark.parametrize(
    ("flags", "world", "bytes_of"),
    [
        ("", 1, lambda replicas: (4, 4, 8)),
        ("--bf16", 1, lambda replicas: (2, 4, 12)),
        (f"--bf16 {SHARDED}", 32, lambda replicas: (2, 4, 12 / replicas)),
        (f"--bf16 {SHARDED} --num-distributed-optimizer-instances 4", 32, lambda replicas: (2, 4, 12 * 4 / replicas)),
    ],
)
def test_the_papers_figures(flags, world, bytes_of):
    """Bytes a parameter for (weights, gradients, states): 4 + 4 + 8 in float32, 2 + 4 + 12 with 16-bit weights; a
    replica has 1/N of what ZeRO divides over N replicas (Rajbhandari et al., "ZeRO", 2020, figure 1)."""
    weights, found = of_a_large_model(flags, world)
    expected = [weights * size for size in bytes_of(world)]
    assert [found.parameters, found.gradients, found.optimizer_states] == pytest.approx(expected, rel=1e-4)
