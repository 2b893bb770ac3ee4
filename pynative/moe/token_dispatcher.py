"""Tokens travel to the ranks of their experts and back (GShard, Lepikhin et al., 2020; MegaBlocks, Gale et al., 2022).

Which rows go where is a plan of plain numbers (`parallel_core.moe.token_dispatch`), made of the router's choices for
every micro-batch. To travel out is to copy rows, to come back is to sum the copies: each is the other's transpose, so
that the backward of one is the other.

s sequence, b batch, h hidden, T = s b tokens of a rank, k choices of each; n ranks of the group that has all experts
once, m experts of a rank, r rows that these receive.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.moe import token_dispatch
from parallel_core.moe.hot_experts import Slots
from parallel_core.moe.token_dispatch import Copies
from parallel_core.numerics.dtypes import Array
from pynative import kernels, parallel_state
from pynative.collectives import Group, Handle
from pynative.moe.router import Routing
from pynative.tape.autograd import Moved, no_grad
from pynative.tape.turns import give_way
from pynative.tensor_parallel.mappings import (
    Boundary,
    gather_from_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
)


@dataclass(frozen=True)
class Route(ABC):
    """The way of one micro-batch's rows, tokens [s, b, h] or choices' probabilities [T, k], to the experts."""

    group: Group
    copies: Copies
    """Copies of the rows that leave this rank, or of all ranks' rows if all ranks get them."""
    shape: tuple[int, ...]
    """Shape of those rows together."""
    row: tuple[int, ...]

    @abstractmethod
    def start(self, x: Tensor) -> Handle:
        """Towards the experts: a handle of the rows that come [r, ...], sorted by this rank's experts. Not recorded."""

    @abstractmethod
    def start_back(self, y: Tensor) -> Handle:
        """Start the way back: a handle of the sums of the copies, in the shape of what went out. Not recorded."""

    def out(self, x: Tensor) -> Tensor:
        """The way to the experts; a computation beside this one goes on meanwhile."""
        return _arrived(self.start(x))

    def back(self, y: Tensor) -> Tensor:
        """The way back from the experts, likewise."""
        return _arrived(self.start_back(y))


def _arrived(on_its_way: Handle) -> Tensor:
    give_way()
    return on_its_way.wait()


@dataclass(frozen=True)
class AllToAllRoute(Route):
    """Each row goes to the ranks that have its expert."""

    sent: Sequence[int]
    """Rows to each rank."""
    received: Sequence[int]
    """Rows from each rank."""
    order: Array | None
    """The rows that came, in the order of the experts; none: they are."""

    def start(self, x: Tensor) -> Handle:
        rows = kernels.gather_rows(x, self.copies.sources, self.row)
        work = self.group.all_to_all(rows, input_splits=self.sent, output_splits=self.received, async_op=True)
        return work.then(self._sorted)

    def _sorted(self, rows: Tensor) -> Tensor:
        return rows if self.order is None else kernels.gather_rows(rows, self.order, self.row)

    def start_back(self, y: Tensor) -> Handle:
        if self.order is not None:
            y = kernels.gather_rows(y, token_dispatch.inverse(self.order), self.row)
        work = self.group.all_to_all(y, input_splits=self.received, output_splits=self.sent, async_op=True)
        return work.then(lambda rows: kernels.sum_rows(rows, self.copies.places, self.shape))


@dataclass(frozen=True)
class AllGatherRoute(Route):
    """Every rank gets all rows and takes those for its experts; the way back is a reduce-scatter."""

    def start(self, x: Tensor) -> Handle:
        work = self.group.all_gather(x, async_op=True)
        return work.then(lambda rows: kernels.gather_rows(rows, self.copies.sources, self.row))

    def start_back(self, y: Tensor) -> Handle:
        return self.group.reduce_scatter(kernels.sum_rows(y, self.copies.places, self.shape), async_op=True)


class Dispatched(NamedTuple):
    """A micro-batch's tokens at this rank's experts."""

    tokens: Tensor
    """[r, h], sorted by expert; recorded."""
    probs: Tensor
    """[r] float32, the weight of each row's result; recorded."""
    counts: Array
    """int64 [m]: rows of each expert."""
    route: Route


class MoETokenDispatcher(ABC):
    """Sends tokens to the ranks of their experts and brings the results back.

    The group has all experts once: m of them on each expert-parallel rank, and with expert tensor parallelism a shard
    of each on neighbouring ranks. A token goes to all shards of its experts, whose results are addends.

    Tensor-parallel ranks have different tokens with sequence parallelism. Without it they have the same, and each
    sends its part along the sequence.

    Args:
        num_local_experts, local_expert_indices: this rank's experts, as the configuration has them.
    """

    def __init__(self, num_local_experts: int, local_expert_indices: Sequence[int], config: ModelConfig) -> None:
        moe = config.moe_config
        assert moe.num_experts is not None
        self.num_experts = moe.num_experts
        self.pads_to_capacity = moe.moe_pad_expert_input_to_capacity
        self.group = parallel_state.get_expert_tensor_and_model_parallel_group()
        self.shards = parallel_state.get_expert_tensor_parallel_world_size()
        self.owner = parallel_state.get_expert_model_parallel_rank()
        _check_local(num_local_experts, local_expert_indices, _local_experts(config))
        self._under_way: Dispatched | None = None
        self.slots = Slots.plain(self.num_experts)
        boundary = Boundary.of(config)
        self.cut_over = None if boundary.cuts_sequence else boundary.group

    @property
    def parts(self) -> int:
        """Number of parts in which a sequence is sent: its length is a multiple."""
        return 1 if self.cut_over is None else self.cut_over.size

    @staticmethod
    def of(config: ModelConfig) -> "MoETokenDispatcher":
        """The dispatcher of --moe-token-dispatcher-type."""
        own = _local_experts(config)
        return DISPATCHERS[config.moe_config.moe_token_dispatcher_type](len(own), own, config)

    @abstractmethod
    def routes(self, experts: Array, rows: Array | None, shape: tuple[int, ...]) -> "Planned":
        """The plan for choices [T, k] of tokens `shape` = [s, b, h]; rows: of each slot, if padded."""

    def dispatch(self, hidden: Tensor, routing: Routing) -> Dispatched:
        """hidden [s, b, h] and its routing -> the tokens at this rank's experts."""
        return self.send(hidden, routing)()

    def send(self, hidden: Tensor, routing: Routing) -> Callable[[], Dispatched]:
        """`dispatch` in two parts: the tokens leave, and a call waits for those that come. What is computed between the
        two goes on while they travel."""
        hidden, probs, experts = self._own_part(hidden, routing)
        rows = self._padded_rows(len(experts), routing.capacity)
        plan = self.routes(self.slots.of(experts), rows, tuple(hidden.shape))
        with no_grad():
            arriving = plan.tokens.start(hidden), plan.choices.start(probs)
        return partial(_dispatched, hidden, probs, plan, arriving)

    def _own_part(self, hidden: Tensor, routing: Routing) -> tuple[Tensor, Tensor, Array]:
        """The tokens, probabilities and choices that this rank sends, of those that all of `cut_over` have."""
        probs, experts, over = routing.probs, routing.experts.asnumpy(), self.cut_over
        if over is None or over.size == 1:
            return hidden, probs, experts
        hidden, probs = (scatter_to_sequence_parallel_region(x, over) for x in (hidden, probs))
        return hidden, probs, np.split(experts, over.size)[over.rank]

    def _padded_rows(self, tokens: int, capacity: int | Array | None) -> Array | None:
        """The rows of each slot, where every expert gets as many whatever was chosen."""
        if capacity is None or not self.pads_to_capacity:
            return None
        return self.slots.rows(np.minimum(np.broadcast_to(capacity, self.num_experts), tokens))

    def combine(self, output: Tensor, dispatched: Dispatched) -> Tensor:
        """The experts' results [r, h], weighted -> [s, b, h]: each token's sum."""
        with no_grad():
            returning = dispatched.route.start_back(output)
        give_way()
        summed = Moved.apply(output, lambda _: returning.wait(), dispatched.route.out)
        if self.cut_over is None:
            return summed
        return gather_from_sequence_parallel_region(summed, self.cut_over, tensor_parallel_output_grad=False)

    def token_permutation(
        self, hidden_states: Tensor, probs: Tensor, routing_map: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`dispatch` by Megatron's name: hidden_states [s, b, h], dense probs [T, E] and bool routing_map [T, E] of its
        T = s b tokens -> the tokens at this rank's experts, rows of each expert, the rows' probabilities."""
        self._under_way = self.dispatch(hidden_states, Routing.of_dense(probs, routing_map))
        tokens, own_probs, counts, _ = self._under_way
        return tokens, Tensor.from_numpy(counts), own_probs

    def token_unpermutation(self, hidden_states: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """`combine` of what the last `token_permutation` sent: [r, h] -> ([s, b, h], bias)."""
        if self._under_way is None:
            raise ValueError("token_unpermutation: no token_permutation before it")
        dispatched, self._under_way = self._under_way, None
        return self.combine(hidden_states, dispatched), bias


def _local_experts(config: ModelConfig) -> range:
    return blocks.Experts.of(config).local(parallel_state.get_expert_model_parallel_rank())


def _check_local(count: int, indices: Sequence[int], own: range) -> None:
    if count != len(indices) or list(indices) != list(own):
        raise ValueError(
            f"num_local_experts={count}, local_expert_indices={list(indices)}: this rank has {len(own)} experts, "
            f"{list(own)}"
        )


class Planned(NamedTuple):
    """A micro-batch's plan."""

    tokens: Route
    choices: Route
    """The route of the choices' probabilities."""
    counts: Array
    """int64 [m]: rows for each of this rank's experts."""


def _dispatched(hidden: Tensor, probs: Tensor, plan: Planned, arriving: tuple[Handle, Handle]) -> Dispatched:
    """The rows that came: recorded, with the way back as their backward."""
    give_way()
    rows, weights = (
        Moved.apply(x, lambda _, handle=handle: handle.wait(), route.back)
        for x, handle, route in zip((hidden, probs), arriving, (plan.tokens, plan.choices), strict=True)
    )
    return Dispatched(rows, weights, plan.counts, plan.tokens)


class MoEAlltoAllTokenDispatcher(MoETokenDispatcher):
    """Rows travel by one all-to-all each way, of as many bytes as their experts ask for.

    Messages beside the rows': unless all know how many there are, because every expert is padded, the ranks tell.
    """

    def routes(self, experts: Array, rows: Array | None, shape: tuple[int, ...]) -> Planned:
        chosen = token_dispatch.sorted_by_expert(experts, self.slots.total, rows)
        sent = token_dispatch.addressed(chosen, self.group.size, self.shards)
        are_known = rows is not None and not self.slots.has_copies
        received = sent.counts if are_known else self._exchanged(sent.counts)
        is_sorted = 1 in received.shape
        route = AllToAllRoute(
            self.group,
            Copies.of(sent.choices, experts.size, self.shards),
            experts.shape,
            (),
            sent.counts.sum(1).tolist(),
            received.sum(1).tolist(),
            None if is_sorted else token_dispatch.by_expert(received),
        )
        return _planned(route, shape, experts.shape[1], received.sum(0))

    def _exchanged(self, counts: Array) -> Array:
        """Exchange the numbers of rows that the ranks send to each other's experts: counts [n, m] to each -> [n, m]
        from each."""
        if self.group.size == 1:
            return counts
        told = _arrived(self.group.all_to_all(Tensor.from_numpy(counts.astype(np.int32)), async_op=True))
        return told.asnumpy().astype(np.int64)


class MoEAllGatherTokenDispatcher(MoETokenDispatcher):
    """Every rank of the group gets all tokens; results come back by a reduce-scatter."""

    def routes(self, experts: Array, rows: Array | None, shape: tuple[int, ...]) -> Planned:
        size = self.slots.total * self.shards // self.group.size
        gathered = self.group.all_gather(Tensor.from_numpy(np.ascontiguousarray(experts))).asnumpy()
        chosen = token_dispatch.sorted_by_expert(gathered, self.slots.total)
        own = token_dispatch.of_experts(chosen, self.owner * size, size)
        route = AllGatherRoute(self.group, Copies.of(own.choices, gathered.size, 1), gathered.shape, ())
        return _planned(route, (self.group.size * shape[0], *shape[1:]), gathered.shape[1], own.counts)


def _planned(choices: Route, shape: tuple[int, ...], times: int, counts: Array) -> Planned:
    """Tokens go as their choices do."""
    tokens = replace(choices, copies=choices.copies.of_rows(times), shape=shape, row=shape[-1:])
    return Planned(tokens, choices, counts)


DISPATCHERS: dict[str, type[MoETokenDispatcher]] = {
    "alltoall": MoEAlltoAllTokenDispatcher,
    "allgather": MoEAllGatherTokenDispatcher,
}
