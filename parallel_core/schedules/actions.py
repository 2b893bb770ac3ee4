"""What a stage does: compute actions, and the exchanges between them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Forward:
    """Run the layers of one of the stage's chunks on a micro-batch."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class Backward:
    """Run a micro-batch's graph backwards: gradients of the chunk's parameters and of its input.

    In a schedule that has `WeightGrad` actions the gradients of the weight matrices are left to those.
    """

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class WeightGrad:
    """The gradients of the weight matrices that a micro-batch's `Backward` left out (zero-bubble schedules)."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class Transfer:
    """One tensor on its way: what `action` made on one stage goes to, or comes from, stage `peer`."""

    action: Forward | Backward
    peer: int


@dataclass(frozen=True)
class Exchange:
    """Everything sent and received between two computations, posted together so that two neighbours never both wait."""

    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()


Compute = Forward | Backward | WeightGrad
Action = Forward | Backward | WeightGrad | Exchange
