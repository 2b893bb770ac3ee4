"""One stretch of time on one rank."""

from enum import Enum
from typing import NamedTuple


class Kind(str, Enum):
    """What a rank does in a span."""

    STEP = "step"
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT_GRADIENTS = "weight gradients"
    OPTIMIZER = "optimizer"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    WAITING = "waiting"
    """In a collective or a receive, for other ranks."""
    MOVING = "moving"
    """In a collective or a transfer, copying or adding."""
    COLLECTIVE = "collective"
    """From the issue of a collective to its end, whatever the rank does meanwhile."""
    OTHER = "other"


COMPUTING = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT_GRADIENTS, Kind.OPTIMIZER, Kind.OTHER})


class Span(NamedTuple):
    """What one rank does from `start` on; spans of one lane and rank lie beside or inside each other."""

    rank: int
    kind: Kind
    name: str
    start: float
    """Seconds on the clock of the job, which is that of rank 0."""
    seconds: float
    step: int = 0
    """The iteration, from 1."""
    group: str = ""
    """Of a message: the name of the ranks' group, such as `tp`, `pp`."""

    @property
    def stop(self) -> float:
        """Its end, in seconds."""
        return self.start + self.seconds

    @property
    def lane(self) -> str:
        """The row in which it is drawn."""
        return "messages under way" if self.kind is Kind.COLLECTIVE else "rank"
