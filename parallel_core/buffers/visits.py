"""The order in which cells need their parameters: what is gathered when, and what is fetched ahead.

With ZeRO stage 3 a cell's parameters are in their slot around its forward and its backward. What lies there still from
the time before is not gathered again; an update makes everything stale.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping

from parallel_core.buffers.slots import Cell


def micro_batch_visits(cells: int, recomputed: Iterable[range] = ()) -> tuple[Cell, ...]:
    """Cells in the order in which a micro-batch needs them: forward, then backward. Neighbours that are `recomputed`
    together run forward again before the last one's backward."""
    group_ending_at = {group.stop - 1: group for group in recomputed}
    backward: list[Cell] = []
    for cell in reversed(range(cells)):
        backward += [*group_ending_at.get(cell, ()), cell]
    return (*range(cells), *backward)


def gathered(visits: Iterable[Cell], slots: Mapping[Cell, int]) -> Iterator[Cell]:
    """The visits for which parameters are gathered, from an update on: those whose slot holds another cell's. slots: of
    the cells that have one."""
    held: dict[int, Cell] = {}
    for cell in visits:
        if cell in slots and held.get(slots[cell]) != cell:
            held[slots[cell]] = cell
            yield cell


class Visits:
    """The order of visits, learned from the first micro-batch of a kind (training, evaluation) and followed from then
    on, to tell which cell comes next."""

    def __init__(self) -> None:
        self._orders: dict[Hashable, list[Cell]] = {}
        self._learned: list[Cell] | None = None
        self._followed: list[Cell] = []
        self._position = -1

    def begin(self, kind: Hashable) -> None:
        """A micro-batch begins."""
        self._position, self._followed, self._learned = -1, self._orders.get(kind, []), None
        if kind not in self._orders:
            self._learned = self._orders[kind] = []

    def enter(self, cell: Cell) -> Cell | None:
        """A cell is visited; the next one that will be, where that is known."""
        if self._learned is not None:
            self._learned.append(cell)
        self._position += 1
        following = self._followed[self._position : self._position + 2]
        return following[1] if len(following) == 2 and following[0] == cell else None
