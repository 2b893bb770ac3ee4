"""Collectives in conjugate pairs (DESIGN, decision 4): the backward of each is the forward of its partner.

copy <-> reduce and scatter <-> gather, named as Megatron names them ("Megatron-LM", Shoeybi et al., 2019: f and g). The
group is passed in; in a group of one nothing happens and nothing is recorded.
"""

from mindspore import Tensor

from pynative.autograd import Function
from pynative.collectives import Group


def split_along_last_dim(x: Tensor, group: Group) -> Tensor:
    """This rank's slice of the last dimension, not recorded."""
    width = x.shape[-1]
    if width % group.size:
        raise ValueError(f"a last dimension of {width} cannot be cut over {group.size} ranks")
    piece = width // group.size
    return x[..., group.rank * piece : (group.rank + 1) * piece].contiguous()


class _CopyToModelParallelRegion(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, dy):
        return ctx.group.all_reduce(dy), None


class _ReduceFromModelParallelRegion(Function):
    @staticmethod
    def forward(ctx, x, group):
        return group.all_reduce(x)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class _ScatterToModelParallelRegion(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return split_along_last_dim(x, group)

    @staticmethod
    def backward(ctx, dy):
        return ctx.group.all_gather(dy, axis=-1), None


class _GatherFromModelParallelRegion(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return group.all_gather(x, axis=-1)

    @staticmethod
    def backward(ctx, dy):
        return split_along_last_dim(dy, ctx.group), None


def _apply(function: type[Function], x: Tensor, group: Group) -> Tensor:
    return x if group.size == 1 else function.apply(x, group)


def copy_to_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """Identity forward, all-reduce backward: the entrance of a column-parallel layer."""
    return _apply(_CopyToModelParallelRegion, x, group)


def reduce_from_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """All-reduce forward, identity backward: the exit of a row-parallel layer."""
    return _apply(_ReduceFromModelParallelRegion, x, group)


def scatter_to_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """Own slice of the last dimension forward, all-gather backward."""
    return _apply(_ScatterToModelParallelRegion, x, group)


def gather_from_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """All-gather along the last dimension forward, own slice backward."""
    return _apply(_GatherFromModelParallelRegion, x, group)
