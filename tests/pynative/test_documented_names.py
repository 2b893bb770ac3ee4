"""Names that scripts of the earlier system import: each stands on the page of names, and does what it wraps does."""

import importlib
import re

import mindspore as ms
import numpy as np
import pytest

from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Rows
from tests.support.pretraining import BATCHES

REGIONS = {
    # cell: (function, arguments, shapes of x and y with two ranks)
    "CopyToModelParallelRegion": ("copy_to_tensor_model_parallel_region", (), (4, 6), (4, 6)),
    "ReduceFromModelParallelRegion": ("reduce_from_tensor_model_parallel_region", (), (4, 6), (4, 6)),
    "ScatterToModelParallelRegion": ("scatter_to_tensor_model_parallel_region", (), (4, 6), (4, 3)),
    "GatherFromModelParallelRegion": ("gather_from_tensor_model_parallel_region", (), (4, 3), (4, 6)),
    "AllGatherFromTensorParallelRegion": ("all_gather_last_dim_from_tensor_parallel_region", (), (4, 3), (4, 6)),
    "ReduceScatterToTensorParallelRegion": ("reduce_scatter_last_dim_to_tensor_parallel_region", (), (4, 6), (4, 3)),
    "ScatterToSequenceParallelRegion": ("scatter_to_sequence_parallel_region", (False,), (4, 6), (2, 6)),
    "ReduceScatterToSequenceParallelRegion": ("reduce_scatter_to_sequence_parallel_region", (False,), (4, 6), (2, 6)),
    "GatherFromSequenceParallelRegion": ("gather_from_sequence_parallel_region", (False,), (2, 6), (4, 6)),
}


def table() -> list[tuple[str, str]]:
    """(old names, what is said to be here) of every row of the page."""
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [(row[0], row[1]) for row in rows]


@pytest.mark.parametrize("here", sorted({name for _, here in table() for name in re.findall(r"`([\w.]+)`", here)}))
def test_a_name_of_the_page_is_there(here):
    module, _, name = here.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_a_row_names_something_or_says_why_not():
    for old, here in table():
        assert here.startswith(("`", "nothing to do", "planned with", "not available")), old


def through(function, x: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and dx."""
    from pynative import autograd

    with autograd.recording():
        leaf = autograd.leaf(ms.Tensor(x))
        y = function(leaf)
    autograd.backward([y], [ms.Tensor(dy)])
    return y.asnumpy(), autograd.take_gradient(leaf).asnumpy()


def regions(backend) -> list[tuple[str, tuple, tuple]]:
    """Of each cell its name, what it gives, and what its function gives."""
    from pynative import parallel_state, tensor_parallel
    from pynative.tensor_parallel import regions

    found, generator = [], np.random.default_rng(backend.rank)
    with job(backend, config_of(f"{TINY} --tensor-model-parallel-size {backend.world_size}", backend.world_size)):
        group = parallel_state.get_tensor_model_parallel_group()
        for name, (function, arguments, x_shape, y_shape) in REGIONS.items():
            y_shape = y_shape if backend.world_size == 2 else x_shape
            x, dy = (generator.normal(size=shape).astype(np.float32) for shape in (x_shape, y_shape))
            cell, mapping = getattr(regions, name), getattr(tensor_parallel, function)
            expected = through(lambda t, mapping=mapping: mapping(t, group), x, dy)
            found.append((name, through(cell(*arguments), x, dy), expected))
            if arguments:
                y, dx = through(cell(True), x.T.copy(), dy.T.copy())
                found.append((f"{name}, axes swapped", (y.T, dx.T), expected))
        ones = np.ones((2, 2), np.float32)
        found.append(("context", through(regions.ReduceFromContextParallelRegion(), ones, ones), (ones, ones)))
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_a_region_is_its_mapping(world):
    """Forward and backward, with and without the first two axes swapped."""
    for found in run(world, regions):
        for name, ours, expected in found:
            for left, right in zip(ours, expected, strict=True):
                np.testing.assert_array_equal(left, right, err_msg=name)


def attention(backend, kind: str) -> tuple[tuple, tuple]:
    """y and dq of a cell, and of the function that a model calls; q of this rank."""
    from pynative import kernels, parallel_state
    from pynative.context_parallel import context_parallel_attention
    from pynative.context_parallel.cells import RingAttention, UlyssesContextAttention

    flags = f"{TINY} --context-parallel-size 2 --context-parallel-algo {kind}_cp_algo"
    with job(backend, config_of(flags, 2)):
        ring = parallel_state.get_context_parallel_group_for_hybrid_ring()
        ulysses = parallel_state.get_context_parallel_group_for_hybrid_ulysses()
        generator = np.random.default_rng(backend.rank)
        q, k, v = (generator.normal(size=(8, 2, 4, 5)).astype(np.float32) for _ in range(3))
        dy = generator.normal(size=(8, 2, 20)).astype(np.float32)
        expected = through(
            lambda t: context_parallel_attention(t, ms.Tensor(k), ms.Tensor(v), ulysses, ring, scale=0.5), q, dy
        )
        if kind == "ulysses":
            cell = UlyssesContextAttention(lambda *heads: kernels.attention(*heads, scale=0.5, causal=True), ulysses)
            return through(lambda t: cell(t, ms.Tensor(k), ms.Tensor(v)), q, dy), expected
        swapped = [np.ascontiguousarray(x.reshape(8, 2, -1).swapaxes(0, 1)) for x in (q, k, v, dy)]
        cell = RingAttention(4, scale_value=0.5)
        y, dq = through(lambda t: cell(t, *map(ms.Tensor, swapped[1:3])), swapped[0], swapped[3])
        return (y.swapaxes(0, 1), dq.swapaxes(0, 1).reshape(q.shape)), expected


@pytest.mark.parametrize("kind", ["megatron", "ulysses"])
def test_attention_over_ranks_is_the_models(kind):
    """The cell in its own layout gives what a model's attention gives."""
    for ours, expected in run(2, attention, kind):
        for left, right in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(left, right)


def refused(backend) -> list[str]:
    from pynative.context_parallel.cells import RingAttention, UlyssesContextAttention

    messages = []
    for make in (
        lambda: RingAttention(4, keep_prob=0.9),
        lambda: RingAttention(4, pre_tokens=8),
        lambda: RingAttention(4, input_layout="BNSD"),
        lambda: UlyssesContextAttention(None, backend.world, scatter_idx=1),
    ):
        with pytest.raises(ValueError) as error:
            make()
        messages.append(str(error.value))
    return messages


def test_what_the_attention_cells_do_not_do_is_refused():
    words = ("keep_prob=0.9", "pre_tokens=8", "input_layout='BNSD'", "scatter_idx=1")
    for word, message in zip(words, run(1, refused)[0], strict=True):
        assert word in message


def neighbours(backend) -> list[float | None]:
    """What a stage of two receives by every method."""
    from pynative.pipeline_parallel.p2p_communication import P2PPrimitive

    config = config_of(f"{TINY} --global-batch-size 4 --pipeline-model-parallel-size 2", 2)
    with job(backend, config):
        stages = P2PPrimitive(config.parallel_config)
        tensor = ms.Tensor(np.full((16, 2, 32), 1.0 + backend.rank, np.float32))
        first = backend.rank == 0
        received = [
            stages.send_forward(tensor) if first else stages.recv_forward(),
            stages.recv_backward() if first else stages.send_backward(tensor),
            stages.send_forward_recv_backward(tensor) if first else stages.send_backward_recv_forward(tensor),
            stages.send_forward_recv_forward(tensor),
            stages.send_backward_recv_backward(tensor),
            *stages.send_forward_backward_recv_forward_backward(tensor, tensor),
        ]
        return [None if r is None else float(r.asnumpy().mean()) for r in received]


def test_single_messages_between_stages():
    assert run(2, neighbours) == [[None, 2.0, 2.0, None, 2.0, None, 2.0], [1.0, None, 1.0, 1.0, None, 1.0, None]]


def documented_calls(backend, flags: str) -> dict[str, list]:
    """Three steps by pretrain, by TrainOneStepCell, by train; and the loss and gradients' norm of the first by hand."""
    from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
    from pynative.training.callbacks import Callback
    from pynative.training.forward_backward import get_forward_backward_func
    from pynative.training.training import TrainOneStepCell, get_model, pretrain, train
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{BATCHES} --train-iters 3 --hidden-dropout 0.2 {flags}", backend.world_size)
    samples = [Rows()[i] for i in range(12)]
    batches = [{n: np.stack([s[n] for s in samples[i : i + 4]]) for n in samples[0]} for i in range(0, 12, 4)]
    found: dict[str, list] = {"pretrain": [], "train": [], "rates": []}

    class Losses(Callback):
        def __init__(self, name):
            self.name = name

        def on_step_end(self, state):
            found[self.name].append((state.result.loss, state.result.gradient_norm))
            if self.name == "pretrain":
                found["rates"].append(state.result.learning_rate)

    def provider(**stage):
        return GPTModel(config.model_config, **stage)

    def step_cell():
        model = get_model(provider, config.training_config)
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        scheduler = get_optimizer_param_scheduler(config)
        return TrainOneStepCell(model, optimizer, scheduler, config.training_config, config.model_config)

    with job(backend, config):
        pretrain(None, provider, all_config=config, train_data_loader=batches, callbacks=[Losses("pretrain")])
        train(step_cell(), batches, config.training_config, callbacks=[Losses("train")])
        cell = step_cell()
        results = [cell(**batch) for batch in batches]
        found["cell"] = [(loss, norm) for loss, _, _, _, norm in results]
        assert [result[1:4] for result in results] == [(True, 1.0, rate) for rate in found.pop("rates")]
        model = get_model(provider, config)
        parameters = list(model.get_parameters())
        forward_backward = get_forward_backward_func(model, parameters, config.training_config, config.model_config)
        loss, gradients = forward_backward(**batches[0])
        norm = float(np.sqrt(sum(np.square(g.asnumpy(), dtype=np.float64).sum() for g in gradients)))
        found["function"] = [(loss, norm)]
        return found


@pytest.mark.parametrize(("world", "layout"), [(1, ""), (2, "--pipeline-model-parallel-size 2")])
def test_documented_calls_train_as_pretrain_does(world, layout):
    """get_optimizer, get_model, TrainOneStepCell and train by the documented arguments, dropout and all."""
    for found in run(world, documented_calls, f"--untie-embeddings-and-output-weights {layout}"):
        assert len(found["pretrain"]) == 3 and found["pretrain"] == found["train"] == found["cell"]
        (loss, norm), (expected, expected_norm) = found["function"][0], found["pretrain"][0]
        assert loss == expected
        assert norm == pytest.approx(expected_norm, rel=1e-5) or (world == 2 and norm < expected_norm)


def test_checkpoints_by_name(tmp_path):
    from pynative.checkpointing import get_checkpoint_name, get_last_checkpoint

    assert get_checkpoint_name(tmp_path, 7) == tmp_path / "iter_0000007"
    with pytest.raises(ValueError):
        get_last_checkpoint(tmp_path)
