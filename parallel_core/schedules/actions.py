"""Actions of a stage: computations, the exchanges between them, and the use of each result."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Forward:
    """Run one of the stage's chunks of the model on a micro-batch."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Backward:
    """Run a micro-batch's graph of a chunk backwards: gradients of the chunk's parameters, and of its input if another
    chunk made that.

    Where the stage has a `WeightGrad` of the same micro-batch and chunk, gradients of weights are left to it.
    """

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class WeightGrad:
    """Compute the gradients of weights that a micro-batch's `Backward` left out (zero-bubble schedules)."""

    micro_batch: int
    chunk: int = 0


Compute = Forward | Backward | WeightGrad


class Pair(NamedTuple):
    """A forward and a backward that may run side by side: while the experts' messages of one travel, the other
    computes. Otherwise one runs after the other."""

    forward: Forward
    backward: Backward
    """A backward of another micro-batch or chunk than the forward's."""


Ordered = Compute | Pair
"""An entry of a stage's list of computations: one, or two side by side."""


class Transfer(NamedTuple):
    """One tensor on its way: what `produced` made on the sending stage is what `consumed` needs on the receiving one.

    The two differ in chunk where the last stage hands over to the first, or in a backward the first to the last. `peer`
    is the other stage: to the sender the receiving one, to the receiver the sending one.
    """

    produced: Compute
    consumed: Compute
    peer: int


class Exchange(NamedTuple):
    """Sends and receives that a stage posts together, before, between or behind its computations."""

    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()


Action = Forward | Backward | WeightGrad | Pair | Exchange


def of_entry(entry: Ordered) -> tuple[Compute, ...]:
    """The one computation of an entry, or the forward and the backward of a pair."""
    return entry if isinstance(entry, Pair) else (entry,)


def computes_of(actions: Iterable[Action]) -> Iterator[Compute]:
    """The computations among a stage's actions in order, without exchanges; of a pair the forward, then the
    backward."""
    return (compute for action in actions if not isinstance(action, Exchange) for compute in of_entry(action))


def split_backwards(computes: Iterable[Compute]) -> frozenset[Backward]:
    """The backwards of a stage that leave gradients of weights to a `WeightGrad` among the stage's computations."""
    return frozenset(Backward(one.micro_batch, one.chunk) for one in computes if isinstance(one, WeightGrad))


def frees(action: Compute, split: frozenset[Backward]) -> bool:
    """Whether `action` is the last one of its micro-batch and chunk in training, after which the stage keeps no
    activation of them; False for a forward. split: the stage's `split_backwards`."""
    return isinstance(action, WeightGrad) or (isinstance(action, Backward) and action not in split)


class Placement(NamedTuple):
    """The stage of each chunk of the model; chunks in the order in which a micro-batch visits them are virtual stages.

    Chunk c of stage s is virtual stage c p + s of a pipeline of p stages, as in Megatron: the last stage hands chunk c
    over to chunk c + 1 of the first. In a folded pipeline chunks 1, 3, ... go the way back, stage s has c p + p-1-s: a
    stage hands over to itself at the ends, and with two chunks the first stage has both ends of the model (the V of
    Qi et al., "Pipeline Parallelism with Controllable Memory", 2024).
    """

    stages: int
    chunks: int = 1
    folded: bool = False

    def virtual(self, stage: int, chunk: int) -> int:
        """The number of the virtual stage that is this chunk of this stage."""
        backwards = self.folded and chunk % 2
        return chunk * self.stages + (self.stages - 1 - stage if backwards else stage)

    def place(self, virtual: int) -> tuple[int, int]:
        """(stage, chunk) of the virtual stage of this number."""
        chunk, along = divmod(virtual, self.stages)
        return (self.stages - 1 - along if self.folded and chunk % 2 else along), chunk

    @property
    def last(self) -> tuple[int, int]:
        """(stage, chunk) of the last virtual stage, which computes the loss."""
        return self.place(self.stages * self.chunks - 1)


def consumer(action: Compute, stage: int, placement: Placement) -> tuple[Compute, int] | None:
    """The action that needs the result of `action` of `stage`, and the stage that runs it; None for a forward of the
    last virtual stage, for a backward of the first, and for any `WeightGrad`."""
    return _moved(action, stage, placement, 1)


def producer(action: Compute, stage: int, placement: Placement) -> tuple[Compute, int] | None:
    """The action that makes the input of `action` of `stage`, and the stage that runs it; None for a forward of the
    first virtual stage, for a backward of the last, and for any `WeightGrad`."""
    return _moved(action, stage, placement, -1)


def _moved(action: Compute, stage: int, placement: Placement, along: int) -> tuple[Compute, int] | None:
    if isinstance(action, WeightGrad):
        return None
    virtual = placement.virtual(stage, action.chunk) + (along if isinstance(action, Forward) else -along)
    if not 0 <= virtual < placement.stages * placement.chunks:
        return None
    peer, chunk = placement.place(virtual)
    return (action if chunk == action.chunk else type(action)(action.micro_batch, chunk)), peer


def input_of(action: Backward | WeightGrad) -> Compute:
    """The action that the same stage must have run before, of the same micro-batch and chunk: for a backward the
    forward, for a `WeightGrad` the backward."""
    before = Backward if isinstance(action, WeightGrad) else Forward
    return before(action.micro_batch, action.chunk)
