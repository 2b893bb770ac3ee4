"""After the last backward of a step: the sums of gradients over ranks."""

from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers


def finalize_model_grads(buffers: ParamAndGradBuffers) -> None:
    """Sum gradients over the data-parallel replicas, partial ones over the tensor-parallel group, and those of a tied
    embedding over the first and last stage, in the order of `parallel_core.buffers.plan_reductions`."""
    buffers.reduce_gradients()
