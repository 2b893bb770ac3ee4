"""A step's loss and gradients as a function, for scripts with a loop of their own."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from mindspore import Parameter, Tensor, nn

from parallel_core.config import ModelConfig, TrainingConfig
from pynative.distributed.finalize_model_grads import finalize_model_grads
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.parameter import trainable
from pynative.pipeline_parallel.step import PipelineStep
from pynative.step_position import StepPosition, set_step_position
from pynative.training.forward_step import BatchedForwardStep
from pynative.training.train_step import config_of


def get_forward_backward_func(
    network_with_loss: nn.CellList, params: Sequence[Parameter], training_config: TrainingConfig,
    model_config: ModelConfig,
) -> Callable[..., tuple[float, tuple[Tensor, ...]]]:  # fmt: skip
    """A function (**data) -> (loss, gradients of params), which runs the configuration's schedule over the chunks.

    data are the model's keyword arguments for all of this rank's micro-batches. Loss and gradients are the global
    batch's, averaged as a training step does, the same on every replica. Each call is an iteration for dropout. The
    chunks are `get_model`'s; building the function moves their parameters into flat buffers, so an optimizer over the
    same chunks has to be built anew.
    """
    config = config_of(training_config, model_config)
    buffers = ParamAndGradBuffers(trainable(network_with_loss), training_config.gradient)
    pipeline = PipelineStep(network_with_loss, config)
    forward_step, calls = BatchedForwardStep(None, config.dataset_config.micro_batch_num), count()

    def forward_backward(**data: Any) -> tuple[float, tuple[Tensor, ...]]:
        network_with_loss.set_train(True)
        set_step_position(StepPosition(next(calls)))
        buffers.empty_gradients()
        loss = pipeline.run(forward_step, iter([data]), train=True)
        finalize_model_grads(buffers)
        scale = pipeline.averaging.gradient_scale(loss.tokens)
        return loss.mean, tuple(parameter.main_grad * scale for parameter in params)

    return forward_backward
