"""Memory of a planned flat buffer, with tensors that view parts of it: what a rank keeps of the buffer, and the slots
of its transient buckets."""

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
"""Function (elements, type) that returns an array of zeros in the host's memory, or in a file mapped into it."""


class Memory(Protocol):
    """Elements of a planned buffer, addressed by their index in the plan, wherever they lie."""

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """A view of this shape whose first element is `start` of the plan."""

    def span(self, start: int, stop: int) -> Tensor:
        """A view of elements start..stop-1 of the plan, as a vector."""
        return self.view(start, (stop - start,))


class FlatMemory(Memory):
    """Memory, at first zeros, for some spans of a planned buffer, with views of any part of one span.

    Elements are addressed by their index in the plan, whichever of its spans are held. On a CPU, and where a given
    function `allocate` makes it, the memory is a numpy array, which all views share. Elsewhere it is a device tensor
    and its views (not run on hardware).
    """

    def __init__(self, spans: Sequence[Span], dtype: str = "float32", allocate: Allocate | None = None) -> None:
        """allocate: makes the memory, outside of the device; None: it is the device's."""
        self.spans, self.dtype = tuple(spans), dtype
        self._memory: Array | Tensor
        if allocate is not None or ms.get_context("device_target") == "CPU":
            self._memory = (allocate or np.zeros)(self.size, Tensor([0], getattr(ms, dtype)).asnumpy().dtype)
        else:
            self._memory = ms.mint.zeros(self.size, dtype=getattr(ms, dtype))

    @property
    def size(self) -> int:
        """The number of elements that are held."""
        return sum(span.size for span in self.spans)

    @property
    def bytes(self) -> int:
        """The number of bytes that are allocated."""
        return self.size * DTYPES[self.dtype].bytes

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """A view of this shape whose first element is `start` of the plan. All its elements must lie in one held
        span, else AssertionError."""
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
        """Whether one of the held spans has all elements of this span of the plan."""
        return any(held.start <= span.start and span.stop <= held.stop for held in self.spans)

    def _place(self, start: int, stop: int) -> int:
        """The index in the memory of element `start` of the plan; start..stop-1 lie in one held span."""
        before = 0
        for held in self.spans:
            if held.start <= start and stop <= held.stop:
                return before + start - held.start
            before += held.size
        raise AssertionError(f"elements {start}..{stop} do not lie in one of {self.spans}")


class SplitMemory(Memory):
    """Memory for spans of a planned buffer in two places: `elsewhere` those that `allocate` makes, in the host's memory
    or in a file, `rest` those of the device. In both, elements are addressed by their index in the plan."""

    def __init__(self, elsewhere: Sequence[Span], rest: Sequence[Span], dtype: str, allocate: Allocate) -> None:
        places = ((elsewhere, allocate), (rest, None))
        self.spans = (*elsewhere, *rest)
        self.parts = [FlatMemory(spans, dtype, where) for spans, where in places if spans]

    @property
    def bytes(self) -> int:
        """The number of bytes that are allocated, in both places together."""
        return sum(part.bytes for part in self.parts)

    def holds(self, span: Span) -> bool:
        """Whether one of the held spans, in either place, has all elements of this span of the plan."""
        return any(part.holds(span) for part in self.parts)

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """A view of this shape whose first element is `start` of the plan. All its elements must lie in one held
        span."""
        span = Span(start, start + prod(shape))
        return next(part for part in self.parts if part.holds(span)).view(start, shape)


SomeMemory = FlatMemory | SplitMemory


class Slots:
    """The memory of a buffer's slots, in which its transient buckets lie, as planned; `memory` is None for a plan
    without slots."""

    def __init__(self, plan: SlotPlan, dtype: str) -> None:
        self.plan = plan
        self.memory = FlatMemory([Span(0, plan.size)], dtype) if plan.size else None

    def memory_of(self, slot: int) -> Tensor:
        """The whole memory of a slot that has a bucket, as a vector."""
        assert self.memory is not None, "a plan with a slot has a size"
        buckets = [bucket for bucket, number in self.plan.slots.items() if number == slot]
        start = self.plan.starts[buckets[0]]
        return self.memory.span(start, start + max(bucket.size for bucket in buckets))

    def view(self, entry: Entry) -> Tensor | None:
        """The view of a parameter's elements in its bucket's slot; None if the bucket has no slot."""
        bucket = self.plan.bucket_of(entry.span)
        return None if bucket is None else InSlot(self, bucket).view(entry.start, entry.place.shape)


class InSlot(Memory):
    """A bucket's elements in its slot, addressed as in the buffer's plan."""

    def __init__(self, slots: Slots, bucket: Span) -> None:
        self.bucket, self.slot, self.cell = bucket, slots.plan.slots[bucket], slots.plan.cells[bucket]
        assert slots.memory is not None, "a plan with a bucket in a slot has a size"
        self._memory, self._shift = slots.memory, slots.plan.starts[bucket] - bucket.start

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """A view, in the slot, of this shape whose first element is `start` of the plan, within the bucket."""
        return self._memory.view(start + self._shift, shape)

    def padding(self, entries: Sequence[Entry]) -> list[Tensor]:
        """Views of the bucket's elements that belong to no parameter, in which another bucket of the slot may have left
        values. entries: the parameters of the buffer, or of the bucket, in order."""
        inside = [entry for entry in entries if self.bucket.start <= entry.start < self.bucket.stop]
        ends, starts = [entry.stop for entry in inside], [*(entry.start for entry in inside[1:]), self.bucket.stop]
        return [self.span(end, start) for end, start in zip(ends, starts, strict=True) if end < start]
