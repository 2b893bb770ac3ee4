"""Reduction of gradients over ranks for scripts that hold them in a list of their own, not in the buffers."""

from collections.abc import Iterable, Sequence

from mindspore import Parameter, Tensor

from parallel_core.config import TrainingConfig
from parallel_core.numerics.averaging import Averaging
from pynative import parallel_state
from pynative.collectives.numbers import over_group


class ParallelTrainingReducer:
    """Reduces a step's gradients, each by a collective of its own.

    Args:
        params: parameters of a model of `get_model`, in the order of the gradients that will be given.
        training_config: with calculate_per_token_loss gradients are summed over replicas, else that sum is divided by
            the data-parallel size.
    """

    def __init__(self, params: Iterable[Parameter], training_config: TrainingConfig) -> None:
        self._specs = [parameter.meta.spec for parameter in params]
        replicas = parallel_state.get_data_parallel_world_size()
        averaging = Averaging(per_token=training_config.calculate_per_token_loss, micro_batches=1, replicas=replicas)
        self._scale = averaging.gradient_scale(1.0)

    def inplace_reduce_dp_grad(self, grads: list[Tensor], params: Sequence[Parameter] | None = None) -> None:
        """Replace each gradient in the list by the sum over its parameter's replicas (`ShardSpec.replicas`), divided by
        the data-parallel size unless calculate_per_token_loss is set. Raises ValueError unless there is one gradient
        for each parameter. params: ignored."""
        groups = [parallel_state.get_group(spec.replicas) for spec in self._specs]
        grads[:] = [group.all_reduce(grad) * self._scale for group, grad in zip(groups, grads, strict=True)]

    def inplace_reduce_sp_grad(self, grads: list[Tensor], params: Sequence[Parameter] | None = None) -> None:
        """Replace partial gradients in the list, of which each rank of a group has an addend, by their sum; the others
        stay. params: ignored."""
        for i, spec in enumerate(self._specs):
            if spec.partial_over is not None:
                grads[i] = parallel_state.get_group(spec.partial_over).all_reduce(grads[i])

    def inplace_reduce_shared_grad(self, grads: list[Tensor], params: Sequence[Parameter] | None = None) -> None:
        """Replace the gradient in the list of an embedding of which the first and the last stage have a copy (a tied
        one, or one that multi-token prediction needs) by its sum over these stages; the others stay. params:
        ignored."""
        for i, spec in enumerate(self._specs):
            if spec.shared_over is not None:
                grads[i] = parallel_state.get_group(spec.shared_over).all_reduce(grads[i])

    def inplace_reduce_grad(self, grads: list[Tensor], params: Sequence[Parameter] | None = None) -> None:
        """Reduce the list's gradients over replicas, then partial ones, then that of an embedding that two stages
        share, as the methods `inplace_reduce_dp_grad`, `inplace_reduce_sp_grad` and `inplace_reduce_shared_grad` do in
        turn. Raises ValueError unless there is one gradient for each parameter. params: ignored."""
        self.inplace_reduce_dp_grad(grads)
        self.inplace_reduce_sp_grad(grads)
        self.inplace_reduce_shared_grad(grads)

    def reduce_is_finite(self, is_finite: bool) -> bool:
        """Whether `is_finite` is true on every rank of the job; all ranks call this."""
        return bool(over_group(is_finite, parallel_state.get_world_group(), "min"))
