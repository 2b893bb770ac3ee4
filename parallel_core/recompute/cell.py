"""How the parts of one cell run: what it is given when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from parallel_core.recompute.parts import Again
from parallel_core.recompute.plan import LayerRecompute


@dataclass(frozen=True)
class CellRecompute:
    """Paths are within the cell, which is empty of itself."""

    ways: Mapping[str, Again] = field(default_factory=dict)
    """Of the parts that run again."""
    kept_collectives: frozenset[str] = frozenset()
    """Linears whose tensor-parallel collectives are not run again: what they gave is kept."""
    offloaded: frozenset[str] = frozenset()
    """Modules that keep in host memory what they save."""
    smallest_offloaded: int = 1
    """Elements of the smallest tensor that goes there."""

    @classmethod
    def of(cls, asked: LayerRecompute, smallest_offloaded: int) -> CellRecompute:
        """Of a layer's."""
        return cls(asked.ways, asked.kept_collectives, frozenset(asked.offloaded), smallest_offloaded)

    def within(self, module: str) -> CellRecompute:
        """The same of a cell inside, whose own path the outer cell looks after."""
        start = f"{module}."
        kept, offloaded = (
            frozenset(path.removeprefix(start) for path in paths if path.startswith(start))
            for paths in (self.kept_collectives, self.offloaded)
        )
        ways = {path.removeprefix(start): way for path, way in self.ways.items() if path.startswith(start)}
        return replace(self, ways=ways, kept_collectives=kept, offloaded=offloaded)
