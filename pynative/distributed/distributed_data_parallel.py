"""Megatron's wrapper of a model, which reduces gradients when its caller says so, for scripts with a loop of their own.
`pretrain` and `TrainOneStepCell` need no wrapper."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mindspore import Tensor, nn

from parallel_core.config import TrainingConfig
from parallel_core.config.gradient import GradientConfig
from parallel_core.numerics.averaging import Averaging
from pynative import parallel_state
from pynative.distributed.bucket import ParamAndGradBucket
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.parameter import trainable, type_name
from pynative.tape.layer_events import LayerEvents


@dataclass(kw_only=True)
class DistributedDataParallelConfig:
    """Megatron's settings of the wrapper. A field at its default leaves the configuration's value, but for
    enable_mem_align: buffers are aligned unless it is False both here and in the configuration. check_for_nan_in_grad
    checks gradients in a script's own loop also where the configuration does not. use_zero3=True raises ValueError:
    --zero-stage 3 does that, in the training loop."""

    grad_reduce_in_fp32: bool = False
    overlap_grad_reduce: bool = False
    """Start a bucket's sum inside the backward of a training step or of `get_forward_backward_func`; after a backward
    that a script runs itself all sums start in `issue_grad_reduce`."""
    use_distributed_optimizer: bool = False
    bucket_size: int | None = None
    average_in_collective: bool = False
    check_for_nan_in_grad: bool = False
    """Raise NonFiniteGradients; with a loss scaler, which finds its scale by overflows, the configuration does not."""
    enable_mem_align: bool = True
    use_zero3: bool = False

    def __post_init__(self) -> None:
        if self.use_zero3:
            raise ValueError(
                "DistributedDataParallelConfig: use_zero3=True: --zero-stage 3 cuts parameters, in pretrain and "
                "TrainOneStepCell alone; give that, and False here"
            )

    def added_to(self, configured: GradientConfig) -> GradientConfig:
        """A copy of the configuration's gradient section in which a switch that both have is on if it is on there or
        here; grad_reduce_in_fp32 here turns accumulate_allreduce_grads_in_fp32 on and grad_reduce_in_bf16 off.
        use_distributed_optimizer here makes the ZeRO stage at least 1. bucket_size is this one's, if it has one."""
        return replace(
            configured,
            accumulate_allreduce_grads_in_fp32=configured.accumulate_allreduce_grads_in_fp32
            or self.grad_reduce_in_fp32,
            grad_reduce_in_bf16=configured.grad_reduce_in_bf16 and not self.grad_reduce_in_fp32,
            overlap_grad_reduce=configured.overlap_grad_reduce or self.overlap_grad_reduce,
            use_distributed_optimizer=configured.use_distributed_optimizer or self.use_distributed_optimizer,
            zero_stage=max(configured.zero_stage, int(self.use_distributed_optimizer)),
            bucket_size=self.bucket_size or configured.bucket_size,
            average_in_collective=configured.average_in_collective or self.average_in_collective,
            enable_mem_align=configured.enable_mem_align or self.enable_mem_align,
        )


class DistributedDataParallel(nn.Cell):
    """`module` with its gradients in flat buffers, and their reduction over the replicas.

    With virtual pipeline stages the buffers are those of all chunks, which the optimizer makes as the configuration
    says, and a `ddp_config` that asks for others raises ValueError, unless they differ in alignment alone; elsewhere
    they are made here, as `config` and `ddp_config` say, unless the parameters are in buffers already.

    Args:
        config: the training section of the configuration.
        disable_bucketing: close no bucket for its size; for buffers that are made here.
    """

    def __init__(
        self,
        config: TrainingConfig,
        ddp_config: DistributedDataParallelConfig,
        module: nn.Cell,
        disable_bucketing: bool = False,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.config, self.ddp_config, self.disable_bucketing = config, ddp_config, disable_bucketing
        self.module = module
        self._gradient = ddp_config.added_to(config.gradient)
        stops = config.check_for_nan_in_grad and config.precision.make_loss_scaler() is None
        self._checks_gradients = ddp_config.check_for_nan_in_grad or stops
        self._is_synchronised = True
        self._is_chunk = parallel_state.get_virtual_pipeline_model_parallel_world_size() is not None
        if self._is_chunk:
            _check_agreement(config.gradient, self._gradient, {type_name(p.dtype) for p in trainable(module)})
        else:
            self._kept = self.flat_buffers

    @property
    def unread_entries(self) -> frozenset[str]:
        """Names of the batch's entries that the wrapped module has no use for, by its own `unread_entries`; none if it
        has no such attribute."""
        return getattr(self.module, "unread_entries", frozenset())

    @property
    def flat_buffers(self) -> ParamAndGradBuffers:
        """The buffers of the module's parameters, which an optimizer over these parameters shares. Raises ValueError
        with virtual stages if they are not made yet or the module has no trainable parameter; without virtual stages
        as `ParamAndGradBuffers.of`."""
        LayerEvents.of(self)
        buffers = self._buffers_of_all_chunks() if self._is_chunk else self._buffers_of_module()
        for bucket in buffers.buckets_of(self.module):
            bucket.is_checked = bucket.is_checked or self._checks_gradients
        return buffers

    def _buffers_of_module(self) -> ParamAndGradBuffers:
        bucket_size = sys.maxsize if self.disable_bucketing else self._gradient.bucket_size
        return ParamAndGradBuffers.of(trainable(self.module), replace(self._gradient, bucket_size=bucket_size))

    def _buffers_of_all_chunks(self) -> ParamAndGradBuffers:
        found = [parameter.meta.buffers() for parameter in trainable(self.module)]
        if not found or found[0] is None:
            raise ValueError(
                "DistributedDataParallel: with virtual pipeline stages the optimizer makes the buffers of all chunks; "
                "call get_optimizer over the list of chunks first, and keep what it gives"
            )
        return found[0]

    def construct(self, *arguments: Any, **named: Any) -> Any:
        """The wrapped module's output."""
        return self.module(*arguments, **named)

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """Give the wrapped module the hidden states that the previous stage sent, for its next call; None on the first
        stage."""
        self.module.set_input_tensor(input_tensor)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context in which gradients are added up and not reduced, as after `enable_sync(False)`; after it the
        reduction is on, even if it was off before. With ZeRO stage 2 or 3 those of layers are reduced all the
        same."""
        self.enable_sync(False)
        try:
            yield
        finally:
            self.enable_sync(True)

    def enable_sync(self, enable: bool) -> None:
        """Turn the reduction of gradients on or off: inside a backward, and by `issue_grad_reduce` and
        `final_grad_reduce`. Without effect on the gradients of layers with ZeRO stage 2 or 3, and on the reduction at
        the end of a step of `pretrain` or `TrainOneStepCell`. Raises as `flat_buffers`."""
        self._is_synchronised = enable
        self.flat_buffers.overlapped_sums.enable(enable, LayerEvents.of(self))

    @property
    def _averaging(self) -> Averaging:
        replicas = parallel_state.get_data_parallel_world_size()
        return Averaging(per_token=self.config.calculate_per_token_loss, micro_batches=1, replicas=replicas)

    @property
    def _factor_before_sum(self) -> float:
        return 1.0 if self._gradient.average_in_collective else self._averaging.gradient_scale(1.0)

    def _own_buckets(self, buffers: ParamAndGradBuffers) -> list[ParamAndGradBucket]:
        """The buckets with parameters of the module. Raises ValueError with ZeRO stage 2 or 3, where a script cannot
        reduce them."""
        if self._gradient.zero_stage >= 2:
            raise ValueError(
                f"--zero-stage {self._gradient.zero_stage}: gradients leave in every micro-batch of a training step, "
                f"not when a script says so; train by TrainOneStepCell or pretrain, or use stage 0 or 1"
            )
        return buffers.buckets_of(self.module)

    def zero_grad_buffer(self) -> None:
        """Mark the gradients of the module's buckets as empty, so that the next contribution overwrites. Raises as
        `flat_buffers`, and ValueError with ZeRO stage 2 or 3; also, until gradients were first marked as empty, if a
        parameter has left its buffer."""
        buffers = self.flat_buffers
        buffers.empty_gradients(self._factor_before_sum, self._own_buckets(buffers))

    def issue_grad_reduce(self) -> None:
        """Start the sums of the module's buckets over the replicas, which `final_grad_reduce` waits for; none within
        `no_sync`, and none twice before the next `zero_grad_buffer`. Raises as `flat_buffers`, and ValueError with ZeRO
        stage 2 or 3, and if a backward has added to a gradient after its sum was started."""
        buckets = [bucket for bucket in self._own_buckets(self.flat_buffers) if not bucket.is_averaged]
        if self._is_synchronised and buckets:
            for events in {parameter.meta.layer_events for bucket in buckets for parameter in bucket.params}:
                events.collect()
            for bucket in buckets:
                bucket.start_grad_sync()

    def final_grad_reduce(self) -> None:
        """Make `main_grad` of each of the module's trainable parameters the sum over its replicas (for experts the
        expert-data-parallel ranks, else the data- and context-parallel ones), divided by the data-parallel size, but
        with --calculate-per-token-loss the sum itself; with the distributed optimizer only in the part that this rank
        owns. Does nothing within `no_sync`, and nothing when it is called again before the next `zero_grad_buffer`.

        Gradients that are also summed over other ranks (partial ones, those of an embedding that two stages hold) are
        complete when the last of the chunks was reduced. Outside of `no_sync` raises as `issue_grad_reduce`, and
        NonFiniteGradients where that is checked.
        """
        if not self._is_synchronised:
            return
        self.issue_grad_reduce()
        buffers, average = self.flat_buffers, self._averaging.gradient_scale(1.0)
        buckets = [bucket for bucket in self._own_buckets(buffers) if not bucket.is_averaged]
        for bucket in buckets:
            bucket.average_gradients(average)
            bucket.check_gradients()
        if buckets and all(bucket.is_averaged for bucket in buffers.buckets):
            buffers.reduce_over_others()


def _check_agreement(configured: GradientConfig, wrapped: GradientConfig, types: Iterable[str]) -> None:
    """Raise ValueError if the wrapper asks for other buffers than the configuration, which decides for all chunks.

    types: names of the types that the parameters have, such as "bfloat16". Alignment may differ: nothing but padding
    depends on it.
    """
    for dtype in types:
        if wrapped.type_for(dtype) != configured.type_for(dtype):
            raise ValueError(
                f"DistributedDataParallelConfig: grad_reduce_in_fp32=True: with virtual pipeline stages the "
                f"configuration says it, which adds up gradients of {dtype} in {configured.type_for(dtype)}; give "
                f"--accumulate-allreduce-grads-in-fp32, or leave --grad-reduce-in-bf16 out"
            )
    for name in ("overlap_grad_reduce", "use_distributed_optimizer", "average_in_collective", "bucket_size"):
        if getattr(wrapped, name) != getattr(configured, name):
            raise ValueError(
                f"DistributedDataParallelConfig: {name}={getattr(wrapped, name)}: with virtual pipeline stages the "
                f"configuration says it, {getattr(configured, name)}; give both the same"
            )
