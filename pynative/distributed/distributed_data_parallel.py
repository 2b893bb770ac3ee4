"""A model whose gradients are reduced when its caller says so, for scripts with a loop of their own.

The training loop needs no wrapper: its step reduces the buffers of whatever model it is given, of a wrapped one too.
"""

import math
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
from pynative.in_place import assign
from pynative.parameter import name_parameters, trainable


@dataclass(kw_only=True)
class DistributedDataParallelConfig:
    """Megatron's settings of the wrapper. Those of time and memory alone change no result: bucket_size, alignment."""

    grad_reduce_in_fp32: bool = False
    overlap_grad_reduce: bool = False
    use_distributed_optimizer: bool = False
    bucket_size: int | None = None
    average_in_collective: bool = False
    check_for_nan_in_grad: bool = False
    enable_mem_align: bool = True
    use_zero3: bool = False

    def __post_init__(self) -> None:
        for name in ("overlap_grad_reduce", "use_distributed_optimizer", "use_zero3"):
            if getattr(self, name):
                raise ValueError(f"DistributedDataParallelConfig: {name}=True: not implemented yet; use False")


class DistributedDataParallel(nn.Cell):
    """`module` with its gradients in flat buffers and their reduction.

    Args:
        config: the training section of the configuration.
        disable_bucketing: reduce a buffer by one collective; it always is, until reductions overlap the backward pass.
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

    @property
    def unread_entries(self) -> frozenset[str]:
        """Of the module."""
        return getattr(self.module, "unread_entries", frozenset())

    @property
    def flat_buffers(self) -> ParamAndGradBuffers:
        """The module's, which an optimizer over its parameters shares."""
        name_parameters(self.module)
        in_fp32 = self.ddp_config.grad_reduce_in_fp32
        types = GradientConfig(accumulate_allreduce_grads_in_fp32=in_fp32, grad_reduce_in_bf16=not in_fp32)
        self._kept = ParamAndGradBuffers.of(trainable(self.module), types)
        return self._kept

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
        """Whether gradients are reduced when that is asked for."""
        self._is_synchronised = enable

    def zero_grad_buffer(self) -> None:
        """Forget the gradients."""
        self._is_reduced = False
        self.flat_buffers.empty_gradients()

    def issue_grad_reduce(self) -> None:
        """Reduce now what `final_grad_reduce` would, which then does nothing."""
        self.final_grad_reduce()

    def final_grad_reduce(self) -> None:
        """Make `main_grad` of every parameter the replicas' mean, or with --calculate-per-token-loss their sum: once
        for each `zero_grad_buffer`."""
        if self._is_reduced or not self._is_synchronised:
            return
        self._is_reduced = True
        buffers, replicas = self.flat_buffers, parallel_state.get_data_parallel_world_size()
        finalize_model_grads(buffers)
        averaging = Averaging(per_token=self.config.calculate_per_token_loss, micro_batches=1, replicas=replicas)
        for buffer in buffers:
            gradients = buffer.gradients.span(0, buffer.plan.size)
            if self.ddp_config.check_for_nan_in_grad and not math.isfinite(kernels.squared_norm(gradients)):
                raise FloatingPointError("DistributedDataParallel: a gradient is not finite")
            assign(gradients, gradients * averaging.gradient_scale(1.0))
