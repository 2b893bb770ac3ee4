"""Clipping of gradients for scripts with a loop of their own; the training step clips inside the optimizer's update."""

from collections.abc import Sequence

from mindspore import Parameter, Tensor, nn

from parallel_core.sharding import is_counted
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.optimizer.statistics import ModelSum, clip_coefficient


class ClipGlobalNorm(nn.Cell):
    """Clipping by the L2 norm of the whole model's gradient, each parameter counted once.

    Args:
        params: this rank's parameters of a model of `get_model`, in the order of the gradients that will be given; on
            all ranks together they are those whose gradient is clipped.
        clip_value: the largest norm that is left after clipping; 0 or less: nothing is clipped.
        norm_type: "l2"; any other raises ValueError.
        reduce_comm_group, share_embeddings_and_output_weights: ignored; a parameter knows which ranks it is cut over,
            and which one counts it.
    """

    def __init__(
        self,
        params: Sequence[Parameter],
        reduce_comm_group: Group | None = None,
        clip_value: float = 1.0,
        norm_type: str = "l2",
        share_embeddings_and_output_weights: bool = True,
    ) -> None:
        super().__init__()
        if norm_type != "l2":
            raise ValueError(f"ClipGlobalNorm: norm_type={norm_type!r} is not available; only 'l2' is")
        self.clip_value, self._sum = clip_value, ModelSum()
        coordinates = parallel_state.get_coordinates()
        specs = [parameter.meta.spec for parameter in params]
        self._replicas = [spec.replicas if is_counted(spec, coordinates) else None for spec in specs]

    def construct(self, grads: list[Tensor]) -> float:
        """Replace the list's gradients by clipped ones, and return the norm, before clipping, of the gradients of the
        parameters of all ranks of the model. All these ranks call this. Raises ValueError unless there is one gradient
        for each parameter."""
        pairs = zip(self._replicas, grads, strict=True)
        norm = self._sum((kind, kernels.squared_norm(gradient)) for kind, gradient in pairs if kind is not None) ** 0.5
        coefficient = clip_coefficient(norm, self.clip_value)
        grads[:] = [gradient * coefficient for gradient in grads]
        return norm


class GradClipByValue(nn.Cell):
    """Clipping of every element to -clip_value..clip_value."""

    def __init__(self, clip_value: float) -> None:
        super().__init__()
        self.clip_value = clip_value

    def construct(self, grads: list[Tensor]) -> None:
        """Replace the list's gradients by clipped copies."""
        grads[:] = [gradient.copy() for gradient in grads]
        for gradient in grads:
            kernels.clamp_(gradient, self.clip_value)
