"""The conjugate collectives of `mappings` as cells, under the names of MindSpore's earlier parallel training.

A cell asks for its group when it runs: the tensor-parallel one, unless its name says another.
"""

from collections.abc import Callable

from mindspore import Tensor, nn

from pynative import parallel_state
from pynative.collectives import Group
from pynative.tensor_parallel import mappings


class _Region(nn.Cell):
    """Calls `mapping(x, group)`."""

    mapping: Callable[[Tensor, Group], Tensor]

    def construct(self, x: Tensor) -> Tensor:
        """See the mapping."""
        return type(self).mapping(x, parallel_state.get_tensor_model_parallel_group())


class CopyToModelParallelRegion(_Region):
    """Identity forward, all-reduce backward."""

    mapping = staticmethod(mappings.copy_to_tensor_model_parallel_region)


class ReduceFromModelParallelRegion(_Region):
    """All-reduce forward, identity backward."""

    mapping = staticmethod(mappings.reduce_from_tensor_model_parallel_region)


class ScatterToModelParallelRegion(_Region):
    """Own slice of the last dimension forward, all-gather backward."""

    mapping = staticmethod(mappings.scatter_to_tensor_model_parallel_region)


class GatherFromModelParallelRegion(_Region):
    """All-gather along the last dimension forward, own slice backward."""

    mapping = staticmethod(mappings.gather_from_tensor_model_parallel_region)


class AllGatherFromTensorParallelRegion(_Region):
    """All-gather along the last dimension forward, reduce-scatter backward."""

    mapping = staticmethod(mappings.all_gather_last_dim_from_tensor_parallel_region)


class ReduceScatterToTensorParallelRegion(_Region):
    """Reduce-scatter along the last dimension forward, all-gather backward."""

    mapping = staticmethod(mappings.reduce_scatter_last_dim_to_tensor_parallel_region)


class ReduceFromContextParallelRegion(nn.Cell):
    """All-reduce over the context-parallel group forward, identity backward."""

    def construct(self, x: Tensor) -> Tensor:
        """Any shape, the same back."""
        return mappings.reduce_from_tensor_model_parallel_region(x, parallel_state.get_context_parallel_group())


class _SequenceRegion(_Region):
    """need_to_swapaxes: tensors are [b, s, ...]; otherwise [s, b, ...]."""

    def __init__(self, need_to_swapaxes: bool) -> None:
        super().__init__()
        self.need_to_swapaxes = need_to_swapaxes

    def construct(self, x: Tensor) -> Tensor:
        """See the mapping."""
        if not self.need_to_swapaxes:
            return super().construct(x)
        return super().construct(x.swapaxes(0, 1).contiguous()).swapaxes(0, 1).contiguous()


class ScatterToSequenceParallelRegion(_SequenceRegion):
    """Own shard of the sequence forward, all-gather backward."""

    mapping = staticmethod(mappings.scatter_to_sequence_parallel_region)


class ReduceScatterToSequenceParallelRegion(_SequenceRegion):
    """Own shard of the sum over the ranks forward, all-gather backward."""

    mapping = staticmethod(mappings.reduce_scatter_to_sequence_parallel_region)


class GatherFromSequenceParallelRegion(_SequenceRegion):
    """The whole sequence forward; backward reduce-scatter, or own shard without tensor_parallel_output_grad."""

    def __init__(self, need_to_swapaxes: bool, tensor_parallel_output_grad: bool = True) -> None:
        super().__init__(need_to_swapaxes)
        self.tensor_parallel_output_grad = tensor_parallel_output_grad

    def construct(self, x: Tensor) -> Tensor:
        """[s/t, b, ...] -> [s, b, ...], or the first two axes the other way round."""
        group = parallel_state.get_tensor_model_parallel_group()
        own = x.swapaxes(0, 1).contiguous() if self.need_to_swapaxes else x
        whole = mappings.gather_from_sequence_parallel_region(own, group, self.tensor_parallel_output_grad)
        return whole.swapaxes(0, 1).contiguous() if self.need_to_swapaxes else whole
