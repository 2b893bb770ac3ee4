"""What a stage does: compute actions, and the exchanges between them.

A large pipeline has a million transfers, so those are tuples, the cheapest of values.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the layers of one of the stage's chunks on a micro-batch."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Backward:
    """Run a micro-batch's graph backwards: gradients of the chunk's parameters and of its input.

    In a schedule that has `WeightGrad` actions the gradients of the weight matrices are left to those.
    """

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class WeightGrad:
    """The gradients of the weight matrices that a micro-batch's `Backward` left out (zero-bubble schedules)."""

    micro_batch: int
    chunk: int = 0


Compute = Forward | Backward | WeightGrad


class Transfer(NamedTuple):
    """One tensor on its way: what `produced` made on the sending stage is what `consumed` needs on the receiving one.

    The two differ in chunk where the last stage hands over to the first. `peer` is the other stage.
    """

    produced: Compute
    consumed: Compute
    peer: int


class Exchange(NamedTuple):
    """Everything sent and received between two computations, posted together: two neighbours never both wait."""

    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()


Action = Forward | Backward | WeightGrad | Exchange
