"""A model whose gradients are reduced when its caller says so, for scripts with a loop of their own.

The training loop needs no wrapper: its step reduces the buffers of whatever model it is given, of a wrapped one too.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mindspore import Tensor, nn

from parallel_core.averaging import Averaging
from parallel_core.config import TrainingConfig
from parallel_core.config.gradient import GradientConfig
from pynative import kernels, parallel_state
from pynative.distributed.finalize_model_grads import finalize_model_grads
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.layer_events import LayerEvents
from pynative.parameter import trainable


@dataclass(kw_only=True)
class DistributedDataParallelConfig:
    """Megatron's settings of the wrapper."""

    grad_reduce_in_fp32: bool = False
    overlap_grad_reduce: bool = False
    """Start a bucket's sum inside the backward of a training step or of `get_forward_backward_func`; a backward that a
    script calls by itself is followed by all of them."""
    use_distributed_optimizer: bool = False
    bucket_size: int | None = None
    average_in_collective: bool = False
    check_for_nan_in_grad: bool = False
    enable_mem_align: bool = True
    use_zero3: bool = False

    def __post_init__(self) -> None:
        if self.use_zero3:
            raise ValueError(
                "DistributedDataParallelConfig: use_zero3=True: --zero-stage 3 cuts parameters, in the training loop "
                "and in get_forward_backward_func; give that, and False here"
            )

    @property
    def gradient(self) -> GradientConfig:
        """The section of the configuration that says the same."""
        return GradientConfig(
            accumulate_allreduce_grads_in_fp32=self.grad_reduce_in_fp32,
            grad_reduce_in_bf16=not self.grad_reduce_in_fp32,
            overlap_grad_reduce=self.overlap_grad_reduce,
            use_distributed_optimizer=self.use_distributed_optimizer,
            zero_stage=int(self.use_distributed_optimizer),
            bucket_size=self.bucket_size,
            average_in_collective=self.average_in_collective,
            enable_mem_align=self.enable_mem_align,
        )


class DistributedDataParallel(nn.Cell):
    """`module` with its gradients in flat buffers and their reduction.

    With virtual pipeline stages the buffers are those of all chunks, which the optimizer makes as the configuration
    says; elsewhere they are made here, as `ddp_config` says.

    Args:
        config: the training section of the configuration.
        disable_bucketing: reduce a buffer by one collective, whatever the bucket size.
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
        self._is_synchronised, self._is_reduced = True, False
        if parallel_state.get_virtual_pipeline_model_parallel_world_size() is None:
            self._kept = self.flat_buffers
        else:
            _check_agreement(config.gradient, ddp_config.gradient)

    @property
    def unread_entries(self) -> frozenset[str]:
        """Of the module."""
        return getattr(self.module, "unread_entries", frozenset())

    @property
    def flat_buffers(self) -> ParamAndGradBuffers:
        """The module's, which an optimizer over its parameters shares."""
        LayerEvents.of(self)
        gradient = self.ddp_config.gradient
        if self.disable_bucketing:
            gradient.bucket_size = sys.maxsize
        buffers = ParamAndGradBuffers.of(trainable(self.module), gradient)
        for bucket in buffers.buckets:
            bucket.is_checked = bucket.is_checked or self.ddp_config.check_for_nan_in_grad
        return buffers

    def construct(self, *arguments: Any, **named: Any) -> Any:
        """What the module gives."""
        return self.module(*arguments, **named)

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """What the stage before sent."""
        self.module.set_input_tensor(input_tensor)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block, gradients are summed up and not reduced."""
        self.enable_sync(False)
        try:
            yield
        finally:
            self.enable_sync(True)

    def enable_sync(self, enable: bool) -> None:
        """Whether gradients are reduced, inside a backward or when that is asked for."""
        self._is_synchronised = enable
        self.flat_buffers.overlapped_sums.enable(enable)

    @property
    def _averaging(self) -> Averaging:
        replicas = parallel_state.get_data_parallel_world_size()
        return Averaging(per_token=self.config.calculate_per_token_loss, micro_batches=1, replicas=replicas)

    @property
    def _factor_before_sum(self) -> float:
        return 1.0 if self.ddp_config.average_in_collective else self._averaging.gradient_scale(1.0)

    def zero_grad_buffer(self) -> None:
        """Forget the gradients."""
        self._is_reduced = False
        self.flat_buffers.empty_gradients(self._factor_before_sum)

    def issue_grad_reduce(self) -> None:
        """Start the sums that `final_grad_reduce` waits for."""
        if self._is_synchronised and not self._is_reduced:
            LayerEvents.of(self).collect()
            for bucket in self.flat_buffers.buckets:
                bucket.start_grad_sync()

    def final_grad_reduce(self) -> None:
        """Make `main_grad` of every parameter the replicas' mean, or with --calculate-per-token-loss their sum: once
        for each `zero_grad_buffer`. With the distributed optimizer that is so for the part that this rank owns."""
        if self._is_reduced or not self._is_synchronised:
            return
        self.issue_grad_reduce()
        self._is_reduced = True
        buffers, rest = self.flat_buffers, self._averaging.gradient_scale(1.0) / self._factor_before_sum
        finalize_model_grads(buffers)
        for buffer in buffers if rest != 1.0 else ():
            for run in buffer.owned:
                kernels.scale_(buffer.gradients.span(*run), rest)


def _check_agreement(configured: GradientConfig, wrapped: GradientConfig) -> None:
    """Raise ValueError if the wrapper asks for other buffers than the configuration, which decides for all chunks."""
    for name in ("overlap_grad_reduce", "use_distributed_optimizer"):
        if getattr(wrapped, name) != getattr(configured, name):
            raise ValueError(
                f"DistributedDataParallelConfig: {name}={getattr(wrapped, name)}: with virtual pipeline stages the "
                f"configuration says it, {getattr(configured, name)}; give both the same"
            )
