"""After the last backward of a step: the sums of gradients over ranks."""

from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers


def finalize_model_grads(buffers: ParamAndGradBuffers, factor_before_sum: float = 1.0) -> None:
    """Multiply gradients by a factor, then all-reduce them over the data-parallel replicas, partial ones over the
    tensor-parallel group, and those of a tied embedding over the first and last stage, in the order of
    `parallel_core.buffers.plan_reductions`."""
    buffers.zero_unused_gradients()
    buffers.scale_gradients(factor_before_sum)
    buffers.reduce_gradients()
