"""The slots in which buckets lie while their cells are at work."""

from collections.abc import Sequence

from mindspore import Tensor

from parallel_core.buffers.layout import Entry, Span
from parallel_core.buffers.slots import SlotPlan
from pynative.distributed.flat_memory import FlatMemory


class Slots:
    """Memory of a buffer's slots."""

    def __init__(self, plan: SlotPlan, dtype: str) -> None:
        self.plan = plan
        self.memory = FlatMemory([Span(0, plan.size)], dtype) if plan.size else None

    def memory_of(self, slot: int) -> Tensor:
        """All of a slot."""
        assert self.memory is not None, "a plan with a slot has a size"
        buckets = [bucket for bucket, number in self.plan.slots.items() if number == slot]
        start = self.plan.starts[buckets[0]]
        return self.memory.span(start, start + max(bucket.size for bucket in buckets))

    def view(self, entry: Entry) -> Tensor | None:
        """A parameter's place in its bucket's slot; none: its bucket is kept whole."""
        bucket = self.plan.bucket_of(entry.span)
        return None if bucket is None else InSlot(self, bucket).view(entry.start, entry.place.shape)


class InSlot:
    """A bucket in its slot, under the plan's addresses, as `FlatMemory` has them of what is kept."""

    def __init__(self, slots: Slots, bucket: Span) -> None:
        self.bucket, self.slot, self.cell = bucket, slots.plan.slots[bucket], slots.plan.cells[bucket]
        assert slots.memory is not None, "a plan with a bucket in a slot has a size"
        self._memory, self._shift = slots.memory, slots.plan.starts[bucket] - bucket.start

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start` of the plan."""
        return self._memory.view(start + self._shift, shape)

    def span(self, start: int, stop: int) -> Tensor:
        """Elements start..stop-1 of the plan as a vector."""
        return self._memory.span(start + self._shift, stop + self._shift)

    def padding(self, entries: Sequence[Entry]) -> list[Tensor]:
        """What belongs to no parameter; another bucket may have left something there."""
        inside = [entry for entry in entries if self.bucket.start <= entry.start < self.bucket.stop]
        ends, starts = [entry.stop for entry in inside], [*(entry.start for entry in inside[1:]), self.bucket.stop]
        return [self.span(end, start) for end, start in zip(ends, starts, strict=True) if end < start]
