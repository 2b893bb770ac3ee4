"""Low-rank adapters of linears: against numpy, under every layout against one process, and with the base unchanged."""

from dataclasses import replace

import numpy as np
import pytest

from parallel_core.blocks import Adapter, Linear
from parallel_core.initial_values import Normal
from tests.support import layouts
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES

OF_ALL = "--lora-r 3 --lora-alpha 6 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"
OF_SOME = "--lora-r 3 --lora-alpha 6 --lora-target-modules linear_qkv mlp\\.linear_fc2 layers\\.1.*linear_proj"
DROPPED = f"{OF_ALL} --lora-dropout 0.25"
OF_LATENT = (
    "--lora-r 3 --lora-alpha 3 --lora-target-modules linear_q_down_proj linear_q_up_proj linear_kv_down_proj "
    "linear_kv_up_proj linear_proj linear_fc1"
)
EP2 = "--expert-model-parallel-size 2"
TP2, SP = "--tensor-model-parallel-size 2", "--sequence-parallel"
PP2, CP2 = "--pipeline-model-parallel-size 2", "--context-parallel-size 2"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
ROWS = [
    ("llama", OF_ALL, 2, f"{TP2} {SP}"),
    ("gpt tied, dropout", DROPPED, 2, f"{TP2} {SP} --recompute-activation-function"),
    ("gpt", DROPPED, 2, TP2),
    ("gpt", OF_SOME, 2, f"{PP2} --pipeline-schedule zb-h1"),
    ("llama", DROPPED, 2, f"{CP2} {FULL}"),
    ("gpt", OF_ALL, 2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    pytest.param("gpt", OF_SOME, 2, "--zero-stage 2", marks=pytest.mark.exhaustive),
    ("llama", OF_ALL, 2, "--zero-stage 3"),
    ("latent attention, compressed queries", OF_LATENT, 2, f"{TP2} {SP}"),
    pytest.param("experts", OF_ALL, 2, EP2, marks=pytest.mark.exhaustive),
    ("experts with biases", OF_ALL, 4, f"{EP2} --expert-tensor-parallel-size 2 {TP2} {SP}"),
    ("two tokens further", OF_ALL, 4, f"{PP2} {TP2}"),
]
"""(family, adapters, ranks, layout). The rows of `-m exhaustive` are parts of others: of ZeRO stage 3, and of experts
that tensor-parallel ranks cut as well."""


def with_b(*arguments, **named):
    """A GPTModel whose adapters begin with random B instead of zero, so that no gradient is zero. B is small enough for
    scores of usual size: with twice as large ones, rounding alone passes the tolerance on some processors."""
    from pynative.transformer.gpt_model import GPTModel

    model = GPTModel(*arguments, **named)
    for parameter in model.get_parameters():
        if parameter.meta.spec.role == "adapter":
            parameter.meta.initial = Normal(0.1)
    return model


def train(backend, flags):
    return layouts.train(backend, flags, build=with_b)


@pytest.mark.parametrize(("family", "adapters", "world", "layout"), ROWS)
def test_a_layout_equals_one_process(family, adapters, world, layout):
    """Losses, the gradient of every adapter, updates and states; no other parameter has a gradient or state."""
    flags = f"{TINY} {FAMILIES[family]} {adapters} --num-layers 2 --global-batch-size 8"
    layouts.check_layout(flags, world, layout, how=train)
    found = layouts.reference(flags, train)
    trained = {name for name in found.initial if ".adapter." in name}
    assert trained and found.gradients.keys() == trained
    assert {name.partition(".")[2] for name in found.state} == trained
    for name, values in found.initial.items():
        assert np.array_equal(found.final[name], values) == (name not in trained), name


def recounted(backend, kind: str) -> tuple[float, list[bool]]:
    """(largest relative difference from numpy of y and all gradients of a column- or row-parallel linear with an
    adapter, which of its parameters are trained)."""
    import mindspore as ms

    from pynative import parallel_state
    from pynative.parameter import initialize_parameters
    from pynative.tape import autograd
    from pynative.tensor_parallel import lora_layers

    config = config_of(f"{TINY} --tensor-model-parallel-size {backend.world_size}", backend.world_size)
    with job(backend, config):
        cell = getattr(lora_layers, f"{kind}ParallelLoRA")(
            8, 6, config=config.model_config, lora_rank=2, lora_alpha=5.0, lora_b_init="normal", bias=False
        )
        initialize_parameters(cell, 3)
        rank, size = parallel_state.get_tensor_model_parallel_rank(), backend.world_size
        generator = np.random.default_rng(0)
        x, dy = (generator.standard_normal((4, 2, width)).astype(np.float32) for width in (8, 6))
        own_x, own_dy = (x, np.split(dy, size, -1)[rank]) if kind == "Column" else (np.split(x, size, -1)[rank], dy)
        with autograd.recording():
            entered = autograd.leaf(ms.Tensor(np.ascontiguousarray(own_x)))
            y, _ = cell(entered)
        autograd.backward([y], [ms.Tensor(np.ascontiguousarray(own_dy))])
        w, a, b = (p.asnumpy() for p in (cell.weight, cell.adapter.lora_a, cell.adapter.lora_b))
        group = parallel_state.get_tensor_model_parallel_group()

        def summed(part: np.ndarray, over_ranks: bool) -> np.ndarray:
            return group.all_reduce(ms.Tensor(part)).asnumpy() if over_ranks and size > 1 else part

        narrow, of_narrow = own_x @ a.T, own_dy @ b
        dims = ([0, 1], [0, 1])
        pairs = [
            (y.asnumpy(), summed(own_x @ w.T + 2.5 * narrow @ b.T, kind == "Row")),
            (autograd.take_gradient(entered).asnumpy(), summed(own_dy @ w + 2.5 * of_narrow @ a, kind == "Column")),
            (autograd.take_gradient(cell.adapter.lora_a).asnumpy(), 2.5 * np.tensordot(of_narrow, own_x, dims)),
            (autograd.take_gradient(cell.adapter.lora_b).asnumpy(), 2.5 * np.tensordot(own_dy, narrow, dims)),
        ]
        error = max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)
        return error, [p.requires_grad for p in (cell.weight, cell.adapter.lora_a, cell.adapter.lora_b)]


@pytest.mark.parametrize("kind", ["Column", "Row"])
@pytest.mark.parametrize("world", [1, 2])
def test_a_linear_of_ones_own_is_numpys(world, kind):
    """Column- and row-parallel linears with an adapter, on 1 and 2 ranks: y and gradients are numpy's, base frozen."""
    for error, trained in run(world, recounted, kind):
        assert error < 1e-6 and trained == [False, True, True]


def of_a_block(backend, cut_axis: int) -> list[tuple[int, ...]]:
    """Shapes of weight, A and B of the LoRA class of this axis `of` a block of 8 and 6 features, those with fused parts
    if it is column-parallel. Asserts that a block with an adapter is refused."""
    from pynative.tensor_parallel import lora_layers

    kind = (lora_layers.ColumnParallelLoRA, lora_layers.RowParallelLoRA)[cut_axis]
    config = config_of(f"{TINY} --tensor-model-parallel-size {backend.world_size}", backend.world_size)
    block = Linear(8, 6, cut_axis, Normal(1.0), "float32", widths=() if cut_axis else (4, 2))
    with job(backend, config):
        cell = kind.of(block, config.model_config, lora_rank=2)
        adapter = Adapter(8, 6, cut_axis, 1, 2, 1.0, 0.0, Normal(1.0), "float32", "tp")
        with pytest.raises(ValueError, match="an adapter of its own"):
            kind.of(replace(block, adapter=adapter), config.model_config)
        return [p.shape for p in (cell.weight, cell.adapter.lora_a, cell.adapter.lora_b)]


@pytest.mark.parametrize(("cut_axis", "shapes"), [(0, [(3, 8), (2, 8), (3, 2)]), (1, [(6, 4), (2, 4), (6, 2)])])
def test_a_block_gets_an_adapter(cut_axis, shapes):
    """ColumnParallelLoRA and RowParallelLoRA `of` a block, one with fused parts: weight and adapter are cut alike; a
    block with an adapter is refused."""
    assert all(found == shapes for found in run(2, of_a_block, cut_axis))


@pytest.mark.parametrize("cut_axis", [0, 1])
def test_an_adapter_is_cut_as_its_linear(cut_axis):
    """The factor of an adapter along the linear's cut axis has the weight's cuts, fused parts included."""
    linear = Linear(12, 8, cut_axis, Normal(1.0), "float32", parts=2)
    adapter = Adapter(12, 8, cut_axis, 2, 3, 1.0, 0.0, Normal(1.0), "float32", "tp").parameters()
    whole, cut = linear.parameters()["weight"].shard, adapter["lora_b" if cut_axis == 0 else "lora_a"].shard
    assert cut.cuts == whole.cuts and cut.shape[cut_axis] == whole.shape[cut_axis]


def without_adapters(backend, flags: str) -> str:
    """The error text of training with adapter flags a script's model that was built without adapters."""
    from pynative.transformer.gpt_model import GPTModel

    bare = config_of(TINY, backend.world_size).model_config
    try:
        layouts.train(backend, flags, build=lambda config, **stage: GPTModel(bare, **stage))
    except ValueError as error:
        return str(error)
    return ""


def test_a_model_without_adapters_is_refused():
    """Adapter flags with a script's model that has no adapters are a ValueError that names its class."""
    said = run(1, without_adapters, f"{TINY} {OF_ALL} --global-batch-size 4")[0]
    assert "GPTModel, which model_provider_func gives, has no adapters" in said
