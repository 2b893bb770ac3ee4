"""A predicted quantity: parts that add up, and the range in which a measured one is expected."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A sum of named parts, in bytes or seconds, with the relative error within which a measured one is expected."""

    parts: dict[str, float]
    """Name -> bytes or seconds."""
    error: float
    """The relative error within which a measured sum is expected: of published step times about nine of ten lie there;
    assumed where no run was measured."""

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def low(self) -> float:
        """The lower end of the range: total x (1 - error)."""
        return self.total * (1 - self.error)

    @property
    def high(self) -> float:
        """The upper end of the range: total x (1 + error)."""
        return self.total * (1 + self.error)
