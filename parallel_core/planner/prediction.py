"""A predicted quantity: parts that add up, and the range in which a measured one is expected."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A sum of named parts, in bytes or seconds."""

    parts: dict[str, float]
    """Name -> amount."""
    error: float
    """Largest relative error of such predictions beside measured runs."""

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def low(self) -> float:
        """The least that is to be expected."""
        return self.total * (1 - self.error)

    @property
    def high(self) -> float:
        """The most that is to be expected."""
        return self.total * (1 + self.error)
