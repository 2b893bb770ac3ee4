"""What a stage does: compute actions, and the exchanges between them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Forward:
    """Run the stage's layers on a micro-batch."""

    micro_batch: int


@dataclass(frozen=True)
class Backward:
    """Run a micro-batch's graph backwards: gradients of the stage's parameters and of its input."""

    micro_batch: int


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


Compute = Forward | Backward
Action = Forward | Backward | Exchange
