"""After the last backward of a step: sum what several ranks hold a share of."""

from mindspore import nn

from pynative import parallel_state
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer


def finalize_model_grads(model: nn.CellList, buffer: ParamAndGradBuffer) -> None:
    """Sum gradients over the replicas, then shares of them over tensor parallelism, then a tied embedding's over the
    first and last stage."""
    buffer.zero_unused_gradients()
    buffer.all_reduce_gradients(parallel_state.get_data_parallel_group(with_context_parallel=True))
    buffer.all_reduce_partial_gradients(parallel_state.get_tensor_model_parallel_group())
    _all_reduce_embedding_grads(model)


def _all_reduce_embedding_grads(model: nn.CellList) -> None:
    if not parallel_state.is_rank_in_embedding_group():
        return
    group = parallel_state.get_embedding_group()
    for parameter in model.get_parameters():
        if parameter.meta.spec.shared_over == "embedding" and group.size > 1:
            group.all_reduce(parameter.main_grad, out=parameter.main_grad)
