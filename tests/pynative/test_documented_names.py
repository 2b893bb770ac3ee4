"""Names that scripts of MindSpeed-Core-MS import: each stands on docs/migrating.md and does what the function that it
wraps does."""

import importlib
import re
from itertools import count

import mindspore as ms
import numpy as np
import pytest

from pynative.kernels.block import AttentionRule
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
    """(old names, text about ours) of every row of docs/migrating.md."""
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [(row[0], row[1]) for row in rows]


@pytest.mark.parametrize("here", sorted({name for _, here in table() for name in re.findall(r"`([\w.]+)`", here)}))
def test_a_name_of_the_page_is_there(here):
    """Each name of ours on docs/migrating.md can be imported from the module that the page gives."""
    module, _, name = here.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_a_row_names_something_or_says_why_not():
    """Each row of docs/migrating.md gives a name, says "nothing to do" or "not available", or points to flags."""
    for old, here in table():
        assert here.startswith(("`", "nothing to do", "not available", "the flags at the right")), old


def through(function, x: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(y, dx) of a function of x for the gradient dy."""
    from pynative.tape import autograd

    with autograd.recording():
        leaf = autograd.leaf(ms.Tensor(x))
        y = function(leaf)
    autograd.backward([y], [ms.Tensor(dy)])
    return y.asnumpy(), autograd.take_gradient(leaf).asnumpy()


def regions(backend) -> list[tuple[str, tuple, tuple]]:
    """[(name, (y, dx) of the region cell, (y, dx) of its mapping)] for every cell of REGIONS, with axes swapped too."""
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
    """Output and gradient of each region cell equal the mapping's, also with the first two axes swapped."""
    for found in run(world, regions):
        for name, ours, expected in found:
            for left, right in zip(ours, expected, strict=True):
                np.testing.assert_array_equal(left, right, err_msg=name)


def attention(backend, kind: str) -> tuple[tuple, tuple]:
    """((y, dq) of the context-parallel cell of that kind, (y, dq) of context_parallel_attention) on this rank."""
    from pynative import kernels, parallel_state
    from pynative.context_parallel import context_parallel_attention
    from pynative.context_parallel.cells import FlashSP, RingAttention, UlyssesContextAttention

    algorithm = "ulysses" if kind == "ulysses" else "megatron"
    flags = f"{TINY} --context-parallel-size 2 --context-parallel-algo {algorithm}_cp_algo"
    with job(backend, config_of(flags, 2)):
        ring = parallel_state.get_context_parallel_group_for_hybrid_ring()
        ulysses = parallel_state.get_context_parallel_group_for_hybrid_ulysses()
        generator = np.random.default_rng(backend.rank)
        q, k, v = (generator.normal(size=(8, 2, 4, 5)).astype(np.float32) for _ in range(3))
        dy = generator.normal(size=(8, 2, 20)).astype(np.float32)
        rule = AttentionRule(scale=0.5)
        expected = through(
            lambda t: context_parallel_attention(t, ms.Tensor(k), ms.Tensor(v), ulysses, ring, rule), q, dy
        )
        if kind == "ulysses":
            cell = UlyssesContextAttention(lambda *heads: kernels.attention(*heads, rule), ulysses)
            return through(lambda t: cell(t, ms.Tensor(k), ms.Tensor(v)), q, dy), expected
        swapped = [np.ascontiguousarray(x.reshape(8, 2, -1).swapaxes(0, 1)) for x in (q, k, v, dy)]
        cell = RingAttention(4, scale_value=0.5) if kind == "ring" else FlashSP(4, scale_value=0.5, sp=2)
        y, dq = through(lambda t: cell(t, *map(ms.Tensor, swapped[1:3])), swapped[0], swapped[3])
        return (y.swapaxes(0, 1), dq.swapaxes(0, 1).reshape(q.shape)), expected


@pytest.mark.parametrize("kind", ["ring", "flash", "ulysses"])
def test_attention_over_ranks_is_the_models(kind):
    """RingAttention, FlashSP and UlyssesContextAttention, in the layouts that they take, give the output and dq of a
    model's attention."""
    for ours, expected in run(2, attention, kind):
        for left, right in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(left, right)


def refused(backend) -> list[str]:
    from pynative.context_parallel.cells import FlashSP, RingAttention, UlyssesContextAttention

    messages, heads = [], [ms.Tensor(np.ones((1, 4, 8), np.float32))] * 3
    for make in (
        lambda: RingAttention(4, keep_prob=0.9),
        lambda: RingAttention(4, pre_tokens=8),
        lambda: RingAttention(4, input_layout="BNSD"),
        lambda: RingAttention(4, use_attention_mask=True)(*heads),
        lambda: FlashSP(4, dp=2),
        lambda: UlyssesContextAttention(None, backend.world, scatter_idx=1),
    ):
        with pytest.raises(ValueError) as error:
            make()
        messages.append(str(error.value))
    return messages


def refused_in_a_job(backend) -> list[str]:
    with job(backend, config_of(TINY, 1)):
        return refused(backend)


def test_what_the_attention_cells_do_not_do_is_refused():
    """Arguments that the attention cells do not implement are ValueErrors that name argument and value."""
    words = ("keep_prob=0.9", "pre_tokens=8", "input_layout='BNSD'", "use_attention_mask=True", "dp=2", "scatter_idx=1")
    for word, message in zip(words, run(1, refused_in_a_job)[0], strict=True):
        assert word in message


def neighbours(backend, flags: str, length: int) -> list[float | None]:
    """The mean of each tensor, of this length and 1.0 and 2.0 by rank, that this one of two stages receives by
    P2PPrimitive's methods in turn; None where there is none."""
    from pynative.pipeline_parallel.p2p_communication import P2PPrimitive

    config = config_of(f"{TINY} --global-batch-size 4 --pipeline-model-parallel-size 2 {flags}", 2)
    with job(backend, config):
        stages = P2PPrimitive(config.parallel_config)
        tensor = ms.Tensor(np.full((length, 2, 32), 1.0 + backend.rank, np.float32))
        first = backend.rank == 0
        received = [
            stages.send_forward(tensor) if first else stages.recv_forward(),
            stages.recv_backward() if first else stages.send_backward(tensor),
            stages.send_forward_recv_backward(tensor) if first else stages.send_backward_recv_forward(tensor),
            stages.send_forward_recv_forward(tensor),
            stages.send_backward_recv_backward(tensor),
            *stages.send_forward_backward_recv_forward_backward(tensor, tensor),
        ]
        assert {r.shape for r in received if r is not None} == {tensor.shape}
        return [None if r is None else float(r.asnumpy().mean()) for r in received]


@pytest.mark.parametrize(("flags", "length"), [("", 16), ("--variable-seq-lengths", 12)])
def test_single_messages_between_stages(flags, length):
    """Each send and receive of P2PPrimitive between two stages gives the neighbour's tensor, of --seq-length or, where
    that may vary, of another length; at the ends, None."""
    assert run(2, neighbours, flags, length) == [
        [None, 2.0, 2.0, None, 2.0, None, 2.0],
        [1.0, None, 1.0, 1.0, None, 1.0, None],
    ]


def documented_calls(backend, flags: str) -> dict[str, list]:
    """ "pretrain", "train", "cell" (TrainOneStepCell) -> (loss, gradient norm) of each of three steps; "functions" ->
    (loss, norm, norm after clipping) of the first by each function for own loops."""
    from pynative.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
    from pynative.training import forward_backward as functions
    from pynative.training.callbacks import Callback
    from pynative.training.grad_handler import ClipGlobalNorm
    from pynative.training.training import TrainOneStepCell, get_model, pretrain, train
    from pynative.training.utils import set_weight_decay
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{BATCHES} --train-iters 3 --hidden-dropout 0.2 {flags}", backend.world_size)
    samples = [Rows()[i] for i in range(12)]
    batches = [{n: np.stack([s[n] for s in samples[i : i + 4]]) for n in samples[0]} for i in range(0, 12, 4)]
    found: dict[str, list] = {"pretrain": [], "train": [], "rates": [], "functions": []}

    class Losses(Callback):
        def __init__(self, name):
            self.name = name

        def on_step_end(self, state):
            found[self.name].append((state.result.loss, state.result.gradient_norm))
            if self.name == "pretrain":
                found["rates"].append(state.result.learning_rate)

    def provider(**stage):
        return GPTModel(config.model_config, **stage)

    def wrapped(**stage):
        return DistributedDataParallel(config.training_config, DistributedDataParallelConfig(), provider(**stage))

    def step_cell(of=provider):
        model = get_model(of, config.training_config)
        groups = set_weight_decay(model.trainable_params(), config.optimizer_config)
        optimizer = get_optimizer(config.optimizer_config, config.training_config, params=groups, network=model)
        scheduler = get_optimizer_param_scheduler(config)
        return TrainOneStepCell(model, optimizer, scheduler, config.training_config, config.model_config)

    with job(backend, config):
        pretrain(None, provider, all_config=config, train_data_loader=batches, callbacks=[Losses("pretrain")])
        train(step_cell(), batches, config.training_config, callbacks=[Losses("train")])
        cell = step_cell(wrapped)
        results = [cell(**batch) for batch in batches]
        found["cell"] = [(loss, norm) for loss, _, _, _, norm in results]
        assert [result[1:4] for result in results] == [(True, 1.0, rate) for rate in found.pop("rates")]
        model = get_model(provider, config)
        parameters = model.trainable_params()
        by_config = functions.get_forward_backward_func(model, parameters, config.training_config, config.model_config)
        sizes, chunks = (config.dataset_config.micro_batch_num, 16, 2), "with" if len(model) > 1 else "without"
        by_schedule = getattr(functions, f"forward_backward_pipelining_{chunks}_interleaving")
        for call in (lambda: by_config(**batches[0]), lambda: by_schedule(model, *sizes, **batches[0])):
            model.forward_backward._calls = count()  # the first iteration's dropout masks again
            loss, *_, gradients = call()
            clipped = list(gradients)
            norm, again = (ClipGlobalNorm(parameters, clip_value=0.01)(clipped) for _ in range(2))
            found["functions"].append((loss, norm, again))
        (loss, *nothing), first = by_schedule(model, *sizes, forward_only=True, **batches[0]), found["pretrain"][0][0]
        assert nothing == [None, None] and 0 < abs(loss - first) < 0.5  # without dropout
        return found


LAYOUTS = [
    (1, ""),
    (2, "--pipeline-model-parallel-size 2"),
    (2, "--num-layers 4 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"),
]


@pytest.mark.parametrize(("world", "layout"), LAYOUTS)
def test_documented_calls_train_as_pretrain_does(world, layout):
    """get_optimizer, get_model, TrainOneStepCell and train with the documented arguments have pretrain's losses,
    dropout included."""
    for found in run(world, documented_calls, f"--untie-embeddings-and-output-weights {layout}"):
        assert len(found["pretrain"]) == 3 and found["pretrain"] == found["train"] == found["cell"]
        expected, expected_norm = found["pretrain"][0]
        for loss, norm, clipped in found["functions"]:
            assert loss == expected and norm == pytest.approx(expected_norm, rel=1e-5)
            assert clipped == pytest.approx(0.01, rel=1e-3)


def own_loop(backend) -> dict[str, list[np.ndarray]]:
    """Form of loop ("pretrain" among them) -> weights after two steps on two replicas: a function of gradients with an
    optimizer built between the steps; a wrapped model whose backward the script calls."""
    from pynative.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from pynative.optimizer import get_optimizer
    from pynative.tape import autograd
    from pynative.training.forward_backward import get_forward_backward_func
    from pynative.training.training import get_model, pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{BATCHES} --clip-grad 0 --weight-decay 0 --lr-decay-style constant", 2)
    samples = [Rows()[4 * backend.rank + i] for i in range(4)]
    batches = [{n: np.stack([s[n] for s in samples[i : i + 2]]) for n in samples[0]} for i in (0, 2)]

    buckets: dict[str, int] = {}

    def weights(model) -> list[np.ndarray]:
        return [parameter.asnumpy().copy() for parameter in model.trainable_params()]

    def by_function(model) -> None:
        step = get_forward_backward_func(model, [], config.training_config, config.model_config)
        step(**batches[0])
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        optimizer.step(1e-3, 0.0, 0.5)
        step(**batches[1])
        optimizer.step(1e-3, 0.0, 0.5)

    def by_hand(model) -> None:
        (wrapped,) = model
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=wrapped)
        for batch in batches:
            wrapped.zero_grad_buffer()
            with wrapped.no_sync():
                with autograd.recording():
                    loss = wrapped(**{name: ms.Tensor(entry) for name, entry in batch.items() if name != "dataset_id"})
                autograd.backward([loss], [ms.Tensor(np.float32(1.0))])
                wrapped.final_grad_reduce()
            wrapped.issue_grad_reduce()
            wrapped.final_grad_reduce()
            optimizer.step(1e-3, 0.0, 1.0)

    def provider(**stage):
        return GPTModel(config.model_config, **stage)

    def wrapped_provider(disable_bucketing=False, **fields):
        ddp_config = DistributedDataParallelConfig(check_for_nan_in_grad=True, bucket_size=5000, **fields)
        return lambda **stage: DistributedDataParallel(
            config.training_config, ddp_config, provider(**stage), disable_bucketing
        )

    sharded = {"use_distributed_optimizer": True, "overlap_grad_reduce": True}
    wrapped = {
        "wrapped": wrapped_provider(),
        "averaged after": wrapped_provider(average_in_collective=True, enable_mem_align=False),
        "sharded": wrapped_provider(**sharded, average_in_collective=True),
        "one bucket": wrapped_provider(**sharded, disable_bucketing=True),
    }

    with job(backend, config):
        found = {"pretrain": weights(pretrain(None, provider, all_config=config, train_data_loader=batches).model)}
        for name, of in {"function": provider, **wrapped}.items():
            model = get_model(of, config)
            (by_function if name == "function" else by_hand)(model)
            found[name] = weights(model)
            if name in wrapped:
                buckets[name] = len(model[0].flat_buffers.buckets)
        assert buckets.pop("one bucket") <= 2 < min(buckets.values()), buckets
        return found


def test_a_loop_of_ones_own_trains_as_pretrain_does():
    """Weights equal pretrain's: gradients are reduced once, into the memory that the optimizer reads, whichever was
    made first."""
    for found in run(2, own_loop):
        for name in found.keys() - {"pretrain"}:
            for ours, expected in zip(found[name], found["pretrain"], strict=True):
                np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-7)


def saved_by_parts(backend, directory) -> list:
    """Weights, steps and moments that load_checkpoint restores into model, optimizer and scheduler; then weights alone.
    Wrong arguments are checked to raise."""
    from pynative.dist_checkpointing import load_checkpoint, save_checkpoint
    from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
    from pynative.training.training import TrainOneStepCell, get_model
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(BATCHES, backend.world_size)
    batch = {n: np.stack([Rows()[i][n] for i in range(4)]) for n in Rows()[0]}

    def made(seed_of: int) -> tuple:
        config.training_config.seed = seed_of
        model = get_model(lambda **stage: GPTModel(config.model_config, **stage), config.training_config)
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        return model, optimizer, get_optimizer_param_scheduler(config)

    def two_losses(parts: tuple) -> list[float]:
        cell = TrainOneStepCell(*parts, config.training_config, config.model_config)
        return [cell(**batch)[0] for _ in range(2)]

    with job(backend, config):
        first, second, third = made(1), made(2), made(3)
        two_losses(first)
        save_checkpoint(config.model_config, *first, ckpt_path=directory / "all", step_num=2, crc_check=True)
        save_checkpoint(config, first[0], ckpt_path=directory / "weights", step_num=2)
        resumed = load_checkpoint(config, *second, ckpt_path=str(directory / "all"), crc_check=True)
        load_checkpoint(config, third[0], ckpt_path=directory / "weights")
        for changes in ({"format": "pickle"}, {"epoch_num": 1}, {"prefix": "../mine"}):
            with pytest.raises(ValueError):
                save_checkpoint(config, *first, ckpt_path=directory / "no", **changes)
        with pytest.raises(ValueError, match="saved without its optimizer"):
            load_checkpoint(config, *third, ckpt_path=directory / "weights")
        return [resumed, *(two_losses(parts) for parts in (first, second, third))]


def test_checkpoints_by_the_documented_calls(tmp_path):
    """save_checkpoint and load_checkpoint restore model, optimizer and schedule, or the weights alone."""
    resumed, goes_on, loaded, weights_alone = run(1, saved_by_parts, tmp_path)[0]
    assert resumed == {"epoch_num": 0, "step_num": 2}
    assert goes_on == loaded
    assert goes_on[0] == weights_alone[0] and goes_on[1] != weights_alone[1]


def small_names(backend) -> None:
    """Check names whose implementation is a line: optimizer and loss by class, clipping by value, LossWithMask, enums,
    set_weight_decay, ClipGlobalNorm."""
    from pynative.optimizer import FlatOptimizer, get_optimizer
    from pynative.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
    from pynative.training.forward_backward import forward_backward_pipelining_with_interleaving
    from pynative.training.grad_handler import ClipGlobalNorm, GradClipByValue
    from pynative.training.loss_func import LossWithMask, get_loss_func
    from pynative.training.training import get_model
    from pynative.training.utils import set_weight_decay
    from pynative.transformer.enums import AttnType, LayerType
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{BATCHES} --weight-decay 0.5", 1)
    with job(backend, config):
        training = config.training_config
        assert get_optimizer(config.optimizer_config, training, return_instance=False) is FlatOptimizer
        assert get_loss_func(training, return_instance=False) is VocabParallelCrossEntropy
        logits, labels, mask = np.zeros((2, 3, 60), np.float32), np.ones((2, 3), np.int32), np.ones((2, 3), np.float32)
        loss = LossWithMask(get_loss_func(training))(*map(ms.Tensor, (logits, labels, mask)))
        assert float(loss.asnumpy()) == pytest.approx(np.log(60), rel=1e-6)
        gradients = [ms.Tensor(np.array([-3.0, 0.5, 2.0, np.nan], np.float32))]
        GradClipByValue(1.0)(gradients)
        np.testing.assert_array_equal(gradients[0].asnumpy(), np.float32([-1.0, 0.5, 1.0, np.nan]))
        assert [kind.name for kind in (AttnType.self_attn, LayerType.decoder)] == ["self_attn", "decoder"]
        model = get_model(lambda **stage: GPTModel(config.model_config, **stage), training)
        decayed, spared = set_weight_decay(model.trainable_params(), config.optimizer_config)
        assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
        assert {len(parameter.shape) for parameter in spared["params"]} == {1}
        assert {len(parameter.shape) for parameter in decayed["params"]} == {2}
        with pytest.raises(ValueError, match="norm_type"):
            ClipGlobalNorm([], norm_type="inf")
        for sizes, words in (((2, 16, 2), "1 chunks"), ((3, 16, 2), "pass those")):
            with pytest.raises(ValueError, match=words):
                forward_backward_pipelining_with_interleaving(model, *sizes)


def test_small_names():
    """Classes and functions of a line each (get_optimizer, LossWithMask, GradClipByValue, ...) do as documented."""
    run(1, small_names)


def test_checkpoints_by_name(tmp_path):
    """`get_checkpoint_name` is iter_ and seven digits; `get_last_checkpoint` of an empty folder is a ValueError."""
    from pynative.checkpointing import get_checkpoint_name, get_last_checkpoint

    assert get_checkpoint_name(tmp_path, 7) == tmp_path / "iter_0000007"
    with pytest.raises(ValueError):
        get_last_checkpoint(tmp_path)
