"""Collectives in conjugate pairs: the backward of each is the forward of its partner.

Named as Megatron names them. "Megatron-LM" (Shoeybi et al., 2019) has copy (f) <-> reduce at the ends of a
tensor-parallel region; "Reducing Activation Recomputation" (Korthikanti et al., 2022) has gather (g) <-> reduce-scatter
along the sequence in their place. In a group of one nothing happens and nothing is recorded.

s sequence (the first axis of an activation), t size of the group.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mindspore import Tensor

from parallel_core.config import ModelConfig
from parallel_core.context import Ranges, SequenceLayout
from pynative import kernels, parallel_state
from pynative.collectives import Completed, Group
from pynative.tape.autograd import Moved
from pynative.tensor_parallel.recompute import kept_collective

Move = Callable[..., Any]
"""Function (x, group, async_op=False) that returns the moved tensor, or with async_op a handle whose wait() returns it.
It is not recorded on the tape."""


def _keep(x: Tensor, group: Group, async_op: bool = False) -> Any:
    return Completed(x) if async_op else x


def _sum(x: Tensor, group: Group, async_op: bool = False) -> Any:
    return group.all_reduce(x, async_op=async_op)


def _gather(axis: int) -> Move:
    return lambda x, group, async_op=False: group.all_gather(x, axis=axis, async_op=async_op)


def _sum_and_cut(axis: int) -> Move:
    return lambda x, group, async_op=False: group.reduce_scatter(x, axis=axis, async_op=async_op)


def _cut(axis: int) -> Move:
    def cut(x: Tensor, group: Group, async_op: bool = False) -> Any:
        if x.shape[axis] % group.size:
            raise ValueError(
                f"shape {tuple(x.shape)}: dimension {axis % x.ndim} cannot be cut evenly over {group.size} ranks"
            )
        return _keep(kernels.chunk(x, axis, group.rank, group.size), group, async_op)

    return cut


def _kept(move: Move) -> Move:
    """The same move, whose result inside a recomputed part is kept for the second run; with async_op it is not kept."""

    def moved(x: Tensor, group: Group, async_op: bool = False) -> Any:
        return move(x, group, async_op=True) if async_op else kept_collective(lambda: move(x, group))

    return moved


_gather_first, _gather_last = _gather(0), _gather(-1)
_sum_and_cut_first, _sum_and_cut_last = _sum_and_cut(0), _sum_and_cut(-1)
_cut_first, _cut_last = _cut(0), _cut(-1)


def _apply(x: Tensor, group: Group, move: Move, conjugate: Move) -> Tensor:
    return x if group.size == 1 else Moved.apply(x, partial(move, group=group), partial(conjugate, group=group))


def copy_to_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """Identity forward, all-reduce backward: the entrance of a column-parallel layer."""
    return _apply(x, group, _keep, _sum)


def reduce_from_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """All-reduce forward, identity backward: the exit of a row-parallel layer."""
    return _apply(x, group, _sum, _keep)


def scatter_to_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """Own slice of the last dimension forward, all-gather backward. ValueError if the group's size does not divide
    that dimension."""
    return _apply(x, group, _cut_last, _gather_last)


def gather_from_tensor_model_parallel_region(x: Tensor, group: Group) -> Tensor:
    """All-gather along the last dimension forward, own slice backward."""
    return _apply(x, group, _gather_last, _cut_last)


def scatter_to_sequence_parallel_region(x: Tensor, group: Group) -> Tensor:
    """[s, ...], equal on all ranks -> this rank's shard [s/t, ...]; all-gather backward. ValueError if t does not
    divide s."""
    return _apply(x, group, _cut_first, _gather_first)


def gather_from_sequence_parallel_region(x: Tensor, group: Group, tensor_parallel_output_grad: bool = True) -> Tensor:
    """[s/t, ...] -> [s, ...]; backward reduce-scatter, or without tensor_parallel_output_grad this rank's shard.

    tensor_parallel_output_grad: True: each rank's gradient is an addend of a sum, as in a tensor-parallel region;
    False: it is the same on all ranks.
    """
    return _apply(x, group, _gather_first, _sum_and_cut_first if tensor_parallel_output_grad else _cut_first)


def reduce_scatter_to_sequence_parallel_region(x: Tensor, group: Group) -> Tensor:
    """[s, ...], an addend of a sum on each rank -> this rank's shard [s/t, ...] of the sum; all-gather backward."""
    return _apply(x, group, _sum_and_cut_first, _gather_first)


def all_gather_last_dim_from_tensor_parallel_region(x: Tensor, group: Group) -> Tensor:
    """All-gather along the last dimension forward, reduce-scatter backward."""
    return _apply(x, group, _gather_last, _sum_and_cut_last)


def reduce_scatter_last_dim_to_tensor_parallel_region(x: Tensor, group: Group) -> Tensor:
    """Reduce-scatter along the last dimension forward, all-gather backward."""
    return _apply(x, group, _sum_and_cut_last, _gather_last)


@dataclass(frozen=True)
class Boundary:
    """The edge of a tensor-parallel region: the layout of hidden states outside (`sequence`, and this rank's place in
    the context-parallel group), and the two moves that cross the edge.

    `enter` makes the whole input of a region from what lies outside, `leave` makes what lies outside from the ranks'
    addends of a sum. They are conjugate: the gradient of an input leaves, the gradient of an output enters.
    """

    group: Group
    enter: Move
    leave: Move
    sequence: SequenceLayout
    """The cut of the sequence outside of the region."""
    context_rank: int

    @staticmethod
    def of(config: ModelConfig) -> "Boundary":
        """The boundary of the model's tensor-parallel regions: outside, every rank of the tensor-parallel group has the
        same [s, b, h] or, with --sequence-parallel, its shard of the sequence, [s/t, b, h]."""
        layout = SequenceLayout.of(config.parallel_config)
        enter, leave = (_gather_first, _sum_and_cut_first) if layout.tensor > 1 else (_keep, _sum)
        group = parallel_state.get_tensor_model_parallel_group()
        return Boundary(group, enter, leave, layout, parallel_state.get_context_parallel_rank())

    def inside(self) -> "Boundary":
        """The edge between two tensor-parallel regions, which moves nothing: inputs are whole already, gradients stay
        the rank's own."""
        return Boundary(self.group, _keep, _keep, self.sequence.gathered, self.context_rank)

    def keeping(self) -> "Boundary":
        """The same edge, but for a forward move within a part that runs again, other than by `drop_output`: its result
        is kept, and the part's second run takes it in place of a second move. Asynchronous moves are made again."""
        enter = self.enter if self.enter is _keep else _kept(self.enter)
        return replace(self, enter=enter, leave=self.leave if self.leave is _keep else _kept(self.leave))

    @property
    def cuts_sequence(self) -> bool:
        """Whether ranks of the group have different positions outside (--sequence-parallel), so that the gradient of a
        parameter that is applied there is an addend of a sum."""
        return self.sequence.tensor > 1

    def positions(self, length: int) -> Ranges:
        """The global positions of this rank's hidden states [length, b, h] as they lie outside of the boundary: with
        --sequence-parallel, unless the boundary is `inside`, those of its shard of `length` tokens."""
        return self.sequence.positions(length, self.context_rank, self.group.rank)

    def entered(self, x: Tensor) -> Tensor:
        """The whole input inside the region, from x as it lies outside; of an `inside` boundary x unchanged. The ranks'
        gradients of the result are addends of a sum, which the backward adds up unless the boundary is `inside`."""
        return _apply(x, self.group, self.enter, self.leave)

    def exit(self, y: Tensor) -> Tensor:
        """The sum of the ranks' addends y, as it lies outside of the region; of an `inside` boundary y unchanged."""
        return _apply(y, self.group, self.leave, self.enter)

    def scatter(self, x: Tensor) -> Tensor:
        """x [s, b, h], equal on all ranks -> as it lies outside: with --sequence-parallel, unless the boundary is
        `inside`, this rank's shard of the sequence, else x itself."""
        return scatter_to_sequence_parallel_region(x, self.group) if self.cuts_sequence else x
