"""Transient memory of ZeRO's stages 2 and 3 ("ZeRO", Rajbhandari et al., 2020), planned before it is allocated.

A bucket is the parameters that a buffer has of one cell: the embedding's, a layer's, the final norm's, the head's.
Apart from slots the rank keeps only its own part of a bucket: with stage 2 of its gradients, with stage 3 of its
parameters, too. While its cell is at work a bucket lies whole in a slot, always the same one, so that every parameter
and every gradient is a fixed view. Neighbours have different slots: one can be at work while gradients of the
other leave, or parameters of the other arrive. Parameters that are not gathered again for the backward have a slot for
each cell.

A parameter that belongs to no cell, and a tied one, which two cells use, stay whole in the buffer, as with stage 1.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from parallel_core.buffers.layout import BufferPlan, Span, overlaps
from parallel_core.sharding import Coordinates

Cell = int
"""The position of a cell among those of a rank's chunks, in the order in which they run forward."""

ALTERNATING = 2
"""The number of slots that inner cells take in turns; the first and the last cell have the slot after them."""


@dataclass(frozen=True)
class SlotPlan:
    """The slots (pieces of memory, each for one bucket at a time) of a buffer's transient buckets: those that are whole
    only part of the time, as while their cell, such as a layer, computes. cells, slots, starts: bucket -> its cell, the
    number of its slot, the first element of that slot; size: the elements of all slots."""

    cells: dict[Span, Cell] = field(default_factory=dict)
    """Bucket -> its cell. A bucket that is not here stays whole all the time."""
    slots: dict[Span, int] = field(default_factory=dict)
    """Bucket -> the number of its slot."""
    starts: dict[Span, int] = field(default_factory=dict)
    """Bucket -> the first element of its slot in the memory of all slots."""
    size: int = 0
    """The number of elements of all slots together."""

    def bucket_of(self, span: Span) -> Span | None:
        """The first transient bucket that has elements of a span of the buffer; None: no transient bucket has any."""
        return next((bucket for bucket in self.cells if overlaps([span], [bucket])), None)


def slot_of(cell: Cell, cells: int) -> int:
    """The slot of cell `cell` of a rank's `cells`: inner cells have 1 and 0 in turns, the first and the last (of three
    or more) both 2 (one or two cells: 0 and 1), so that no two neighbouring cells share one."""
    is_end = cells > ALTERNATING and cell in (0, cells - 1)
    return ALTERNATING if is_end else cell % ALTERNATING


def _transient_buckets(plan: BufferPlan, keys: Sequence[Cell | None]) -> Iterator[tuple[Span, Cell]]:
    """The buckets that are whole only while their cell is at work, each with that cell. keys: the cell of each planned
    parameter, None for one of no cell."""
    for bucket in plan.buckets:
        inside = [entry for entry in plan.entries if bucket.start <= entry.start < bucket.stop]
        (key,) = {keys[entry.index] for entry in inside}
        if key is not None and all(entry.spec.shared_over is None for entry in inside):
            yield bucket, key


def plan_slots(plan: BufferPlan, keys: Sequence[Cell | None], cells: int, takes_turns: bool = True) -> SlotPlan:
    """The slots for a buffer whose buckets have parameters of one cell, or of no cell, each. keys: the cell of each
    planned parameter, None without one. cells: their number on the rank. takes_turns: at most three slots that cells
    share (`slot_of`), else one slot for each cell. Buckets of no cell, or with a tied parameter, have no slot."""
    cell_of = dict(_transient_buckets(plan, keys))
    slots = {bucket: slot_of(cell, cells) if takes_turns else cell for bucket, cell in cell_of.items()}
    sizes = [
        max((bucket.size for bucket, slot in slots.items() if slot == number), default=0)
        for number in range(max(slots.values(), default=-1) + 1)
    ]
    return SlotPlan(cell_of, slots, {bucket: sum(sizes[:slot]) for bucket, slot in slots.items()}, sum(sizes))


@dataclass(frozen=True)
class Residence:
    """The spans of one buffer that a rank updates (owned) and those that it keeps all the time (parameters, gradients),
    and the slots for the rest while it is needed."""

    owned: tuple[Span, ...]
    """The spans that the rank updates, and of which it has the optimizer's state."""
    parameters: tuple[Span, ...]
    """The spans of parameters that the rank keeps all the time."""
    gradients: tuple[Span, ...]
    """The spans of gradients that the rank keeps all the time."""
    parameter_slots: SlotPlan
    gradient_slots: SlotPlan


def plan_residence(
    plan: BufferPlan,
    keys: Sequence[Cell | None],
    cells: int,
    coordinates: Coordinates,
    stage: int,
    gathers_again: bool = True,
) -> Residence:
    """The residence on the rank at these coordinates, for ZeRO stage `stage` (0 - 3). Below stage 2 a rank keeps all
    parameters and gradients, and so does in each stage a rank that shares its state with no other. keys: the cell of
    each planned parameter, None without one. cells: their number on the rank. gathers_again: stage 3 gathers parameters
    again for the backward; else they stay whole from a cell's forward to its backward."""
    owned = plan.owned_by(coordinates, sharded=stage > 0)
    whole: tuple[Span, ...] = (plan.span,)
    if stage < 2 or owned == plan.buckets:
        return Residence(owned, whole, whole, SlotPlan(), SlotPlan())
    slots = plan_slots(plan, keys, cells)
    cut = tuple(own if bucket in slots.cells else bucket for bucket, own in zip(plan.buckets, owned, strict=True))
    if stage == 2:
        return Residence(owned, whole, cut, SlotPlan(), slots)
    return Residence(owned, cut, cut, slots if gathers_again else plan_slots(plan, keys, cells, False), slots)


def micro_batch_visits(cells: int, recomputed: Iterable[range] = ()) -> tuple[Cell, ...]:
    """The cells in the order in which one micro-batch runs them: forward, then backward. Each range of `recomputed` is
    cells that run forward again together, before the backward of the last of them."""
    group_ending_at = {group.stop - 1: group for group in recomputed}
    backward: list[Cell] = []
    for cell in reversed(range(cells)):
        backward += [*group_ending_at.get(cell, ()), cell]
    return (*range(cells), *backward)


def gathered(visits: Iterable[Cell], slots: Mapping[Cell, int]) -> Iterator[Cell]:
    """The cells of `visits`, in order, before which the cell's parameters must be gathered, because its slot holds
    another cell's or none yet. Before the first visit all slots are empty, as after an update. slots: the slot of each
    cell that has one; cells without one are never gathered."""
    held: dict[int, Cell] = {}
    for cell in visits:
        if cell in slots and held.get(slots[cell]) != cell:
            held[slots[cell]] = cell
            yield cell


class Visits:
    """The order in which cells are visited, to tell which cell comes next: learned from the first `begin` of a kind, as
    training or evaluation, to the next `begin`, and used after later ones of that kind."""

    def __init__(self) -> None:
        self._orders: dict[Hashable, list[Cell]] = {}
        self._learned: list[Cell] | None = None
        self._followed: list[Cell] = []
        self._position = -1

    def begin(self, kind: Hashable) -> None:
        """Begin a micro-batch of this kind; of the first one of a kind the order in which cells are visited is
        learned."""
        self._position, self._followed, self._learned = -1, self._orders.get(kind, []), None
        if kind not in self._orders:
            self._learned = self._orders[kind] = []

    def enter(self, cell: Cell) -> Cell | None:
        """Note that a cell is visited, and return the one that comes next in the learned order; None while the order is
        being learned, at its end, or where this cell is not the one that was due."""
        if self._learned is not None:
            self._learned.append(cell)
        self._position += 1
        following = self._followed[self._position : self._position + 2]
        return following[1] if len(following) == 2 and following[0] == cell else None
