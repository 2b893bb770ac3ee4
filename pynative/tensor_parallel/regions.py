"""The conjugate collectives of `mappings` as cells, under the names of MindSpeed-Core-MS.

A cell acts over the tensor-parallel group, unless its name says another; it looks the group up when it runs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mindspore import Tensor, nn

from pynative import parallel_state
from pynative.collectives import Group
from pynative.tensor_parallel import mappings


class _Region(nn.Cell):
    """A cell that calls `mapping(x, group)`."""

    mapping: Callable[..., Tensor]
    group: Callable[[], Group] = staticmethod(parallel_state.get_tensor_model_parallel_group)

    def __init_subclass__(cls, mapping: Callable[..., Tensor] | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if mapping is not None:
            cls.mapping = staticmethod(mapping)

    def construct(self, x: Tensor) -> Tensor:
        """The result of the class's collective (`mapping`) for x over its group."""
        return self.mapping(x, self.group())


class CopyToModelParallelRegion(_Region, mapping=mappings.copy_to_tensor_model_parallel_region):
    """Identity forward, all-reduce backward, over the tensor-parallel group."""


class ReduceFromModelParallelRegion(_Region, mapping=mappings.reduce_from_tensor_model_parallel_region):
    """All-reduce forward, identity backward, over the tensor-parallel group."""


class ScatterToModelParallelRegion(_Region, mapping=mappings.scatter_to_tensor_model_parallel_region):
    """Own slice of the last dimension forward, all-gather backward, over the tensor-parallel group."""


class GatherFromModelParallelRegion(_Region, mapping=mappings.gather_from_tensor_model_parallel_region):
    """All-gather along the last dimension forward, own slice backward, over the tensor-parallel group."""


class AllGatherFromTensorParallelRegion(_Region, mapping=mappings.all_gather_last_dim_from_tensor_parallel_region):
    """All-gather along the last dimension forward, reduce-scatter backward, over the tensor-parallel group."""


class ReduceScatterToTensorParallelRegion(_Region, mapping=mappings.reduce_scatter_last_dim_to_tensor_parallel_region):
    """Reduce-scatter along the last dimension forward, all-gather backward, over the tensor-parallel group."""


class ReduceFromContextParallelRegion(ReduceFromModelParallelRegion):
    """All-reduce over the context-parallel group forward, identity backward."""

    group = staticmethod(parallel_state.get_context_parallel_group)


class _SequenceRegion(_Region):
    """A region cell for sequences: with need_to_swapaxes tensors are [b, s, ...], otherwise [s, b, ...]."""

    def __init__(self, need_to_swapaxes: bool) -> None:
        super().__init__()
        self.need_to_swapaxes = need_to_swapaxes

    def construct(self, x: Tensor) -> Tensor:
        """The result of the class's collective (`mapping`) for x, in the layout of x."""
        if not self.need_to_swapaxes:
            return super().construct(x)
        return super().construct(x.swapaxes(0, 1).contiguous()).swapaxes(0, 1).contiguous()


class ScatterToSequenceParallelRegion(_SequenceRegion, mapping=mappings.scatter_to_sequence_parallel_region):
    """Own shard of the sequence forward, all-gather backward, over the tensor-parallel group. With need_to_swapaxes
    tensors are [b, s, ...], else [s, b, ...]."""


class ReduceScatterToSequenceParallelRegion(
    _SequenceRegion, mapping=mappings.reduce_scatter_to_sequence_parallel_region
):
    """Own shard, along the sequence, of the sum over the tensor-parallel group forward, all-gather backward. With
    need_to_swapaxes tensors are [b, s, ...], else [s, b, ...]."""


class GatherFromSequenceParallelRegion(_SequenceRegion):
    """All-gather along the sequence forward; backward reduce-scatter, or own shard without tensor_parallel_output_grad;
    over the tensor-parallel group. With need_to_swapaxes tensors are [b, s, ...], else [s, b, ...]."""

    def __init__(self, need_to_swapaxes: bool, tensor_parallel_output_grad: bool = True) -> None:
        super().__init__(need_to_swapaxes)
        gather = mappings.gather_from_sequence_parallel_region
        self.mapping = partial(gather, tensor_parallel_output_grad=tensor_parallel_output_grad)
