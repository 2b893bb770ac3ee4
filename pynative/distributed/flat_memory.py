"""One stretch of memory, many tensors that view it: what a rank keeps of a buffer, and the slots in which buckets lie
while their cells are at work."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel_core.buffers.layout import Entry, Span
from parallel_core.buffers.slots import SlotPlan
from parallel_core.numerics.dtypes import DTYPES, Array

Allocate = Callable[[int, np.dtype[Any]], Array]
"""(elements, type) -> zeros in memory of the host."""


class Memory(Protocol):
    """Elements of a planned buffer, wherever they lie."""

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start` of the plan."""

    def span(self, start: int, stop: int) -> Tensor:
        """Elements start..stop-1 of the plan as a vector."""
        return self.view(start, (stop - start,))


class FlatMemory(Memory):
    """Zeros of a type for some spans of a planned buffer, with views of any part of one span.

    Elements are named by their place in the plan, whichever of its spans are held. On a CPU numpy owns the memory,
    because a MindSpore view of a CPU tensor cannot be written to; every view shares it with numpy and with the other
    views. Elsewhere it is a device tensor and its views (not run on hardware).
    """

    def __init__(self, spans: Sequence[Span], dtype: str = "float32", allocate: Allocate | None = None) -> None:
        """allocate: who makes the memory, which then is the host's, instead."""
        self.spans, self.dtype = tuple(spans), dtype
        self._memory: Array | Tensor
        if allocate is not None or ms.get_context("device_target") == "CPU":
            self._memory = (allocate or np.zeros)(self.size, Tensor([0], getattr(ms, dtype)).asnumpy().dtype)
        else:
            self._memory = ms.mint.zeros(self.size, dtype=getattr(ms, dtype))

    @property
    def size(self) -> int:
        """Elements."""
        return sum(span.size for span in self.spans)

    @property
    def bytes(self) -> int:
        """Allocated."""
        return self.size * DTYPES[self.dtype].bytes

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start`."""
        size = prod(shape)
        first = self._place(start, start + size)
        last = first + size
        if isinstance(self._memory, np.ndarray):
            array = self._memory[first:last].reshape(shape)
            view = Tensor.from_numpy(array)
            view.host_memory = array
            return view
        return self._memory[first:last].view(shape)

    def holds(self, span: Span) -> bool:
        """Whether it has these elements."""
        return any(held.start <= span.start and span.stop <= held.stop for held in self.spans)

    def _place(self, start: int, stop: int) -> int:
        """The place in the memory of elements start..stop-1 of the plan."""
        before = 0
        for held in self.spans:
            if held.start <= start and stop <= held.stop:
                return before + start - held.start
            before += held.size
        raise AssertionError(f"elements {start}..{stop} do not lie in one of {self.spans}")


class SplitMemory(Memory):
    """Elements of a planned buffer of which a part is kept elsewhere, under the plan's addresses."""

    def __init__(self, elsewhere: Sequence[Span], rest: Sequence[Span], dtype: str, allocate: Allocate) -> None:
        places = ((elsewhere, allocate), (rest, None))
        self.spans = (*elsewhere, *rest)
        self.parts = [FlatMemory(spans, dtype, where) for spans, where in places if spans]

    @property
    def bytes(self) -> int:
        """Allocated, in all places."""
        return sum(part.bytes for part in self.parts)

    def holds(self, span: Span) -> bool:
        """Whether one of the parts has these elements."""
        return any(part.holds(span) for part in self.parts)

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start` of the plan."""
        span = Span(start, start + prod(shape))
        return next(part for part in self.parts if part.holds(span)).view(start, shape)


SomeMemory = FlatMemory | SplitMemory


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


class InSlot(Memory):
    """A bucket in its slot, under the plan's addresses, as `FlatMemory` has them of what is kept."""

    def __init__(self, slots: Slots, bucket: Span) -> None:
        self.bucket, self.slot, self.cell = bucket, slots.plan.slots[bucket], slots.plan.cells[bucket]
        assert slots.memory is not None, "a plan with a bucket in a slot has a size"
        self._memory, self._shift = slots.memory, slots.plan.starts[bucket] - bucket.start

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start` of the plan."""
        return self._memory.view(start + self._shift, shape)

    def padding(self, entries: Sequence[Entry]) -> list[Tensor]:
        """The elements that belong to no parameter; another bucket may have left something there."""
        inside = [entry for entry in entries if self.bucket.start <= entry.start < self.bucket.stop]
        ends, starts = [entry.stop for entry in inside], [*(entry.start for entry in inside[1:]), self.bucket.stop]
        return [self.span(end, start) for end, start in zip(ends, starts, strict=True) if end < start]
