"""Dispatch of tokens to the ranks of their experts and back (GShard, Lepikhin et al., 2020; MegaBlocks, Gale et al.,
2022).

The rows that go to each rank are a plan of plain numbers (`parallel_core.moe.token_dispatch`), made of the router's
choices for every micro-batch. The way out copies rows, the way back sums the copies: each is the other's transpose, so
that the backward of one is the other. s sequence, b batch, h hidden, T = s b tokens of a rank, k choices of each; n
ranks of the group over which all experts are shared out, m experts of a rank, its copies of hot ones included, r rows
that these receive, padding included.
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
    """The way of a micro-batch's rows to the experts and back: of tokens [s, b, h], or of choices' probabilities [T,
    k]."""

    group: Group
    copies: Copies
    """The row that each place on the way holds a copy of: a row of this rank, or of all ranks if all get all rows."""
    shape: tuple[int, ...]
    """The shape of the tensor whose rows are copied."""
    row: tuple[int, ...]

    @abstractmethod
    def start(self, x: Tensor) -> Handle:
        """Start the way to the experts: a handle of the rows of all ranks' x that come to this rank, [r, ...], sorted
        by its experts; padding is zeros. It has no backward of its own: `MoETokenDispatcher` puts the way on the
        tape."""

    @abstractmethod
    def start_back(self, y: Tensor) -> Handle:
        """Start the way back of rows [r, ...]: a handle of each original row's sum of its copies, in the shape of
        `start`'s x. It has no backward of its own, either."""

    def out(self, x: Tensor) -> Tensor:
        """`start`, and wait for the rows that come to this rank's experts; while they travel, a computation that takes
        turns with this one goes on."""
        return _arrived(self.start(x))

    def back(self, y: Tensor) -> Tensor:
        """`start_back`, and wait for the sums that come back from the experts; while they travel, a computation that
        takes turns with this one goes on."""
        return _arrived(self.start_back(y))


def _arrived(on_its_way: Handle) -> Tensor:
    give_way()
    return on_its_way.wait()


@dataclass(frozen=True)
class AllToAllRoute(Route):
    """A route by an all-to-all: each rank gets only the rows, padding included, that its experts compute."""

    sent: Sequence[int]
    """The number of rows to each rank of the group."""
    received: Sequence[int]
    """The number of rows from each rank of the group."""
    order: Array | None
    """Indices of the rows that came, sorted by expert; None: they come sorted."""

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
    """A route by an all-gather, of which every rank takes the rows for its experts; the way back is a
    reduce-scatter."""

    def start(self, x: Tensor) -> Handle:
        work = self.group.all_gather(x, async_op=True)
        return work.then(lambda rows: kernels.gather_rows(rows, self.copies.sources, self.row))

    def start_back(self, y: Tensor) -> Handle:
        return self.group.reduce_scatter(kernels.sum_rows(y, self.copies.places, self.shape), async_op=True)


class Dispatched(NamedTuple):
    """A micro-batch's tokens that came to this rank's experts."""

    tokens: Tensor
    """[r, h], sorted by expert; on the tape."""
    probs: Tensor
    """[r] float32, the weight of each row's result; on the tape."""
    counts: Array
    """int64 [m]: the number of rows of each expert."""
    route: Route


class MoETokenDispatcher(ABC):
    """Sends tokens to the ranks of their experts and brings the results back.

    The ranks of the expert-tensor-and-model-parallel group have all experts together: E/e of them on each of e
    expert-parallel ranks, copies of hot ones on all of these, and with expert tensor parallelism a shard of each on
    neighbouring ranks. A token goes to all shards of its experts (of a hot one, those of its rank's copy); the shards'
    results are addends. With sequence parallelism tensor-parallel ranks have different tokens. Without it they have the
    same, and each sends its part along the sequence.

    Args:
        num_local_experts, local_expert_indices: the count of this rank's experts, and each one's number; ValueError if
            they are not the configuration's.
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
        """The number of equal parts of a sequence that tensor-parallel ranks send, 1 with sequence parallelism: s must
        be a multiple of it."""
        return 1 if self.cut_over is None else self.cut_over.size

    @staticmethod
    def of(config: ModelConfig) -> "MoETokenDispatcher":
        """The dispatcher of --moe-token-dispatcher-type."""
        own = _local_experts(config)
        return DISPATCHERS[config.moe_config.moe_token_dispatcher_type](len(own), own, config)

    @abstractmethod
    def routes(self, experts: Array, rows: Array | None, shape: tuple[int, ...]) -> "Planned":
        """The plan for tokens of `shape` = (s, b, h). experts: int [T, k], the slots that they go to: experts of all
        ranks and copies of hot ones, numbered as in `Slots`; -1 for none. rows: the number of rows that each slot is
        padded to, which an all-gather disregards; None: as many as are chosen. All ranks of the group call this."""

    def dispatch(self, hidden: Tensor, routing: Routing) -> Dispatched:
        """Send hidden states [s, b, h] by their routing, and wait for the tokens that come to this rank's experts."""
        return self.send(hidden, routing)()

    def send(self, hidden: Tensor, routing: Routing) -> Callable[[], Dispatched]:
        """Start `dispatch`, and return a function that waits for the tokens that come and returns them; until it is
        called this rank can compute while they travel."""
        hidden, probs, experts = self._own_part(hidden, routing)
        rows = self._padded_rows(len(experts), routing.capacity)
        plan = self.routes(self.slots.of(experts), rows, tuple(hidden.shape))
        with no_grad():
            arriving = plan.tokens.start(hidden), plan.choices.start(probs)
        return partial(_dispatched, hidden, probs, plan, arriving)

    def _own_part(self, hidden: Tensor, routing: Routing) -> tuple[Tensor, Tensor, Array]:
        """(Tokens, probabilities [T, k], choices [T, k]) that this rank sends: without sequence parallelism its part,
        along the sequence, of those that all tensor-parallel ranks have alike."""
        probs, experts, over = routing.probs, routing.experts.asnumpy(), self.cut_over
        if over is None or over.size == 1:
            return hidden, probs, experts
        hidden, probs = (scatter_to_sequence_parallel_region(x, over) for x in (hidden, probs))
        return hidden, probs, np.split(experts, over.size)[over.rank]

    def _padded_rows(self, tokens: int, capacity: int | Array | None) -> Array | None:
        """The number of rows of each expert, and copy of a hot one, where every expert is padded to its capacity; None
        without padding."""
        if capacity is None or not self.pads_to_capacity:
            return None
        return self.slots.rows(np.minimum(np.broadcast_to(capacity, self.num_experts), tokens))

    def combine(self, output: Tensor, dispatched: Dispatched) -> Tensor:
        """Send the experts' results [r, h] back: the sum of each token's results, [s, b, h]. They are weighted
        already."""
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
        """`dispatch` in Megatron's form: hidden_states [s, b, h], dense probs [T, E] and bool routing_map [T, E] of its
        T = s b tokens -> (the tokens at this rank's experts [r, h], rows of each expert [m], the rows' probabilities
        [r])."""
        self._under_way = self.dispatch(hidden_states, Routing.of_dense(probs, routing_map))
        tokens, own_probs, counts, _ = self._under_way
        return tokens, Tensor.from_numpy(counts), own_probs

    def token_unpermutation(self, hidden_states: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """`combine` of the tokens of the last `token_permutation`: results [r, h] -> ([s, b, h], the argument bias).
        Raises ValueError if there was no `token_permutation` since the last call."""
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
    """The routes of a micro-batch's tokens and of their choices' probabilities, and the number of rows that come for
    each of this rank's experts and copies of hot ones (`counts`)."""

    tokens: Route
    choices: Route
    """The route of the choices' probabilities [T, k]."""
    counts: Array
    """int64 [m]: the number of rows that come for each of this rank's experts, and of its copies of hot ones."""


def _dispatched(hidden: Tensor, probs: Tensor, plan: Planned, arriving: tuple[Handle, Handle]) -> Dispatched:
    """Wait for the rows that come; put them on the tape, with the way back as their backward."""
    give_way()
    rows, weights = (
        Moved.apply(x, lambda _, handle=handle: handle.wait(), route.back)
        for x, handle, route in zip((hidden, probs), arriving, (plan.tokens, plan.choices), strict=True)
    )
    return Dispatched(rows, weights, plan.counts, plan.tokens)


class MoEAlltoAllTokenDispatcher(MoETokenDispatcher):
    """The dispatcher whose rows travel by all-to-all: as many as the choices ask for, or as experts are padded to.

    Before the rows, several ranks exchange how many there are, unless every expert is padded and none has copies.
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
        """The number of rows from each rank for each of this rank's experts, [n, m], from `counts` [n, m], the number
        of this rank's rows for each expert of each rank."""
        if self.group.size == 1:
            return counts
        told = _arrived(self.group.all_to_all(Tensor.from_numpy(counts.astype(np.int32)), async_op=True))
        return told.asnumpy().astype(np.int64)


class MoEAllGatherTokenDispatcher(MoETokenDispatcher):
    """The dispatcher by which every rank of the group gets all tokens; results come back by a reduce-scatter. Nothing
    is padded, whatever the capacity."""

    def routes(self, experts: Array, rows: Array | None, shape: tuple[int, ...]) -> Planned:
        size = self.slots.total * self.shards // self.group.size
        gathered = self.group.all_gather(Tensor.from_numpy(np.ascontiguousarray(experts))).asnumpy()
        chosen = token_dispatch.sorted_by_expert(gathered, self.slots.total)
        own = token_dispatch.of_experts(chosen, self.owner * size, size)
        route = AllGatherRoute(self.group, Copies.of(own.choices, gathered.size, 1), gathered.shape, ())
        return _planned(route, (self.group.size * shape[0], *shape[1:]), gathered.shape[1], own.counts)


def _planned(choices: Route, shape: tuple[int, ...], times: int, counts: Array) -> Planned:
    """The plan whose tokens go as their choices do. shape: of the tokens whose rows are copied; times: k."""
    tokens = replace(choices, copies=choices.copies.of_rows(times), shape=shape, row=shape[-1:])
    return Planned(tokens, choices, counts)


DISPATCHERS: dict[str, type[MoETokenDispatcher]] = {
    "alltoall": MoEAlltoAllTokenDispatcher,
    "allgather": MoEAllGatherTokenDispatcher,
}
