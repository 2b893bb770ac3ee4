"""DistributedDataParallel in loops of users' scripts: what is reduced when, and which settings count."""

from contextlib import nullcontext

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from parallel_core.numerics.loss_scale import ConstantLossScaler, LossScaler
from tests.support.distributed import run
from tests.support.engine import config_of, job
from tests.support.layouts import Rows
from tests.support.pretraining import BATCHES, pretrain_tiny

CHUNKS = (
    "--global-batch-size 8 --num-layers 4 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
)


def wrapped(config, **fields):
    """A model provider that returns GPTModel wrapped in DistributedDataParallel, with these fields of its config."""
    from pynative.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from pynative.transformer.gpt_model import GPTModel

    ddp_config = DistributedDataParallelConfig(**fields)
    return lambda **stage: DistributedDataParallel(
        config.training_config, ddp_config, GPTModel(config.model_config, **stage)
    )


def test_zero3_is_refused_with_the_places_where_it_is_done():
    """use_zero3=True names what trains at ZeRO stage 3, and no function that refuses it."""
    from pynative.distributed import DistributedDataParallelConfig

    with pytest.raises(ValueError, match=r"--zero-stage 3 .* pretrain and TrainOneStepCell") as caught:
        DistributedDataParallelConfig(use_zero3=True)
    assert "get_forward_backward_func" not in str(caught.value)


def batch_of(rank: int) -> dict[str, np.ndarray]:
    """This rank's own batch of two samples."""
    samples = [Rows()[2 * rank + i] for i in range(2)]
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def gradients_of_two_backwards(backend) -> list[dict[str, np.ndarray]]:
    """Reduced gradients of two backwards of the same batch and weights, in a loop that calls `zero_grad_buffer` after
    each step only."""
    from pynative.tape import autograd
    from pynative.training.training import get_model

    config, found = config_of(BATCHES, backend.world_size), []
    with job(backend, config):
        (model,) = get_model(wrapped(config), config)
        for _ in range(2):
            with autograd.recording():
                loss = model(**{n: ms.Tensor(e) for n, e in batch_of(backend.rank).items() if n != "dataset_id"})
            autograd.backward([loss], [ms.Tensor(np.float32(1.0))])
            model.final_grad_reduce()
            found.append({p.meta.spec.name: p.main_grad.asnumpy().copy() for p in model.trainable_params()})
            model.zero_grad_buffer()
    return found


def test_the_first_gradient_is_the_mean_without_a_call_before_it():
    """Without `zero_grad_buffer` before the first step its gradient is the replicas' mean, as the second's; it was
    their sum."""
    for first, second in run(2, gradients_of_two_backwards):
        for name, gradient in second.items():
            np.testing.assert_allclose(first[name], gradient, rtol=1e-6, atol=1e-9, err_msg=name)


def spoilt(backend, flags: str, fields: dict[str, bool]) -> None:
    """Reduce gradients of which one is NaN, in a loop of one's own."""
    from pynative.training.training import get_model

    config = config_of(f"{BATCHES} {flags}", backend.world_size)
    with job(backend, config):
        (model,) = get_model(wrapped(config, **fields), config)
        model.zero_grad_buffer()
        for parameter in model.trainable_params():
            parameter.main_grad.asnumpy()[...] = np.nan
            parameter.meta.main_grad_is_empty = False
        model.final_grad_reduce()


@pytest.mark.parametrize(
    ("flags", "fields", "stops"),
    [
        ("", {}, True),
        ("--bf16", {}, True),
        ("--no-check-for-nan-in-loss-and-grad", {}, False),
        ("--no-check-for-nan-in-loss-and-grad", {"check_for_nan_in_grad": True}, True),
        ("--fp16", {}, False),
    ],
)
def test_a_loop_of_ones_own_stops_as_the_configuration_says(flags, fields, stops):
    """A gradient that is NaN is an error of `final_grad_reduce` unless the configuration turns the check off or has a
    loss scaler, and the wrapper's field asks for none."""
    with pytest.raises(FloatingPointError, match="is not finite") if stops else nullcontext():
        run(1, spoilt, flags, fields)


def checked(backend, scaler: LossScaler | None) -> set[bool]:
    """Whether buckets of a wrapped model are checked in a training step that is given this loss scaler."""
    from pynative.optimizer import get_optimizer
    from pynative.training.train_step import TrainOneStepCell
    from pynative.training.training import get_model

    config = config_of(BATCHES, backend.world_size)
    with job(backend, config):
        model = get_model(wrapped(config), config)
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        sections = config.training_config, config.model_config
        step = TrainOneStepCell(model, optimizer, None, *sections, loss_scaler=scaler)
        return {bucket.is_checked for bucket in step.buffers.buckets}


def test_a_step_with_a_loss_scaler_of_its_own_does_not_stop():
    """A loss scaler that a script gives to the step, not the configuration, skips updates whose gradients overflow,
    also of a wrapped model."""
    assert run(1, checked, None) == [{True}]
    assert run(1, checked, ConstantLossScaler(8.0)) == [{False}]


class Net(nn.Cell):
    """A model whose only parameter belongs to no cell that the wrapper can observe."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.w = ms.Parameter(ms.Tensor(np.full((64, 64), 0.01, np.float32)), name="w")

    def set_input_tensor(self, tensor):
        """Ignored: there is no stage before this one."""

    def construct(self, x):
        return ops.ReduceMean()(ops.MatMul()(x, self.w))


def losses_of_own_model(backend, flags: str) -> list[float]:
    """Losses of four steps of a script's own loop around `Net`, with the distributed optimizer."""
    from pynative.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from pynative.optimizer import get_optimizer
    from pynative.tape import autograd
    from pynative.training.training import get_model

    config, losses = config_of(f"{BATCHES} {flags}", backend.world_size), []
    generator = np.random.default_rng(backend.rank)
    with job(backend, config):
        ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True)
        (model,) = chunks = get_model(
            lambda **_: DistributedDataParallel(config.training_config, ddp_config, Net()), config
        )
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=chunks)
        for _ in range(4):
            model.zero_grad_buffer()
            with autograd.recording():
                loss = model(ms.Tensor(generator.normal(size=(8, 64)).astype(np.float32)))
            losses.append(float(loss.asnumpy()))
            autograd.backward([loss], [ms.Tensor(np.float32(1.0))])
            model.final_grad_reduce()
            optimizer.step(1e-1, 0.0, 1.0)
    return losses


def test_parameters_of_no_observed_cell_are_whole_after_the_update():
    """`Net`'s parameter is gathered by the end of each update, as nothing tells when it is needed; forwards once used
    the values before it."""
    flags = "--use-distributed-optimizer --overlap-grad-reduce"
    expected = run(2, losses_of_own_model, flags)
    assert run(2, losses_of_own_model, f"{flags} --overlap-param-gather") == expected


def chunks_reduced(backend, flags: str) -> list[tuple[str, set[float]]]:
    """[(parameter name, values of its reduced gradient)] of two steps on virtual stages, each replica's own gradient
    being its data-parallel rank + 1."""
    from pynative import parallel_state
    from pynative.optimizer import get_optimizer
    from pynative.training.training import get_model

    config, found = config_of(f"{BATCHES} {CHUNKS} {flags}", backend.world_size), []
    with job(backend, config):
        model = get_model(wrapped(config), config)
        with pytest.raises(ValueError, match="call get_optimizer"):
            model[0].zero_grad_buffer()
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        own = parallel_state.get_data_parallel_rank() + 1.0
        for _ in range(2):
            for parameter in model.trainable_params():
                parameter.main_grad.asnumpy()[...] = own
                parameter.meta.main_grad_is_empty = False
            for chunk in model:
                with chunk.no_sync():
                    chunk.final_grad_reduce()
            assert all((p.main_grad.asnumpy() == own).all() for p in model.trainable_params())
            for chunk in model:
                chunk.issue_grad_reduce()
            for chunk in model:
                chunk.final_grad_reduce()
            found += [(p.meta.spec.name, set(p.main_grad.asnumpy().ravel())) for p in model.trainable_params()]
            for chunk in model:
                chunk.zero_grad_buffer()
        del optimizer
    return found


@pytest.mark.parametrize("flags", ["", "--overlap-grad-reduce"])
def test_virtual_stages_are_reduced_chunk_by_chunk(flags):
    """Reduced gradients are the replicas' mean, of the tied embedding that mean summed over stages once, whether chunks
    share a bucket or not."""
    for found in run(4, chunks_reduced, flags):
        for name, values in found:
            assert values == {3.0 if "word_embeddings" in name or "output_layer" in name else 1.5}, name


def buffers_of_run(backend, flags: str, wraps: bool) -> tuple:
    """(whether gradient buffers are sharded, types, bytes of memories, last loss) of a `pretrain` run; wraps: the
    provider wraps the model itself."""
    config = config_of(f"{BATCHES} {flags}", backend.world_size)
    provider = {"model_provider_func": wrapped(config, enable_mem_align=False)} if wraps else {}
    state = pretrain_tiny(backend, f"{BATCHES} {flags}", **provider)
    buffers = state.step_cell.buffers
    sent_as = [[reduction.sent_as for reduction in bucket._reductions] for bucket in buffers.buckets]
    types = [buffer.plan.gradient_type for buffer in buffers], sent_as
    memory = [memory.bytes for buffer in buffers for memory in buffer.memories]
    return buffers.is_sharded, types, memory, state.result.loss


@pytest.mark.parametrize(
    "flags", ["--zero-stage 3", "--use-distributed-optimizer", "--bf16 --communication-data-type bf16"]
)
def test_flags_act_on_a_wrapped_model(flags):
    """Settings that a script's DistributedDataParallelConfig leaves at their default come from the command line: the
    run's buffers and loss are those of an unwrapped model."""
    assert run(2, buffers_of_run, flags, True) == run(2, buffers_of_run, flags, False)


def refused(backend) -> None:
    from pynative.training.training import get_model

    config = config_of(f"{BATCHES} --zero-stage 2", backend.world_size)
    with job(backend, config):
        (model,) = get_model(wrapped(config), config)
        with pytest.raises(ValueError, match="--zero-stage 2"):
            model.zero_grad_buffer()


def test_a_loop_of_ones_own_cannot_cut_gradients():
    """`zero_grad_buffer`, a call of users' own loops, refuses --zero-stage 2, under which gradients are cut."""
    run(2, refused)


def other_types(backend) -> None:
    from pynative.training.training import get_model

    config = config_of(f"{BATCHES} {CHUNKS} --fp16", backend.world_size)
    with job(backend, config):
        get_model(wrapped(config, grad_reduce_in_fp32=False), config)
        with pytest.raises(ValueError, match="adds up gradients of float16 in float16; give --accumulate"):
            get_model(wrapped(config, grad_reduce_in_fp32=True), config)


def test_a_wrapped_virtual_stage_adds_up_in_the_configurations_type():
    """A wrapper that asks for another gradient type than the configuration, which decides for all virtual stages, is
    told so; it was ignored in silence."""
    run(2, other_types)
