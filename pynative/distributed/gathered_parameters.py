"""Parameters of which a rank keeps its own part (ZeRO stage 3): whole in their slots while their cells are at work."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import mindspore
import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.buffers import Entry, Span, Stretch, overlaps
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import SHARDS_OF_STATES
from pynative import kernels, parallel_state
from pynative.collectives import Group, Handle
from pynative.distributed.flat_memory import SomeMemory
from pynative.distributed.slots import InSlot, Slots
from pynative.memory import in_place
from pynative.memory.rounding import bits

NOT_HERE = -1024.0
"""What every element of a slot is while no parameters are in it: no weight, so that nobody takes it for one; and not
NaN, so that values that a script makes of it and assigns are told from it, too."""


@dataclass
class _Slot:
    """What is in a slot, or on its way there."""

    memory: Tensor
    bucket: Span | None = None
    arriving: Handle | None = None

    def vacate(self) -> None:
        """What is there is stale, or was never any."""
        self.wait()
        self.bucket = None
        kernels.fill_(self.memory, NOT_HERE)

    def check(self) -> None:
        """Raise ValueError if somebody wrote values there, of which nothing is kept."""
        if self.bucket is None and not self._is_vacant():
            raise ValueError(
                "parameters: some were assigned values, of which nothing is kept, because with --zero-stage 3 a rank "
                "keeps its part of each; write them by pynative.checkpointing.load_weights"
            )

    def _is_vacant(self) -> bool:
        """Whether nobody wrote there since it was vacated."""
        on_host: Array | None = getattr(self.memory, "host_memory", None)
        if on_host is None:
            return bool((self.memory.astype(mindspore.float32) == NOT_HERE).all())
        return bool((bits(on_host) == bits(np.array(NOT_HERE, on_host.dtype))).all())

    def wait(self) -> None:
        """Until what was asked for is there."""
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            arriving.wait()


class GatheredParameters:
    """The transient parameters of one buffer. What the rank keeps of them may lie in host memory: it then enters the
    slot first.

    Args:
        replicas: kind of the group whose ranks hold the same parameters.
        entries: of the buffer.
        kept: what the rank keeps: of a transient bucket its own part.
    """

    def __init__(
        self, replicas: str, entries: Sequence[tuple[Entry, Parameter]], slots: Slots, kept: SomeMemory
    ) -> None:
        self._entries, self._kept = list(entries), kept
        self._group: Group = parallel_state.get_group(SHARDS_OF_STATES[replicas])
        self._places = {bucket: InSlot(slots, bucket) for bucket in slots.plan.cells}
        self._slots = {place.slot: _Slot(slots.memory_of(place.slot)) for place in self._places.values()}
        self._own = {bucket: one for bucket in self._places for one in overlaps([bucket], kept.spans)}
        self._names = {bucket: self._name_of(bucket) for bucket in self._places}
        for slot in self._slots.values():
            slot.vacate()
        for bucket in self._places:
            self._adopt(bucket)

    def _name_of(self, bucket: Span) -> str:
        """What it is, in messages."""
        first, *more = [entry.spec.name for entry, _ in self._entries if overlaps([entry.span], [bucket])]
        return f"parameters {first} and {len(more)} more, which --zero-stage 3 gathers when a layer is called"

    def _adopt(self, bucket: Span) -> None:
        """Move a bucket's parameters into its slot, and what of them is this rank's into what it keeps."""
        for entry, parameter in self._entries:
            if overlaps([entry.span], [bucket]):
                place = self._places[bucket].view(entry.start, entry.place.shape)
                in_place.assign(place, parameter)
                parameter.set_data(place)
                self.keep(entry)
                parameter.meta.fetch, parameter.meta.keep = partial(self.need, bucket), partial(self.keep, entry)
                for run in overlaps([entry.span], [self._own[bucket]]):
                    parameter.meta.kept = Stretch.of(entry, run), self._kept.span(*run)

    def need(self, bucket: Span) -> None:
        """Have a bucket's parameters in its slot; all ranks call this."""
        slot = self._slots[self._places[bucket].slot]
        if slot.bucket != bucket:
            self._start(bucket)
        slot.wait()

    def fetch_ahead(self, bucket: Span, at_work: Span | None) -> None:
        """Start to gather a bucket's parameters, unless they are there, or another bucket is at work in that slot."""
        number = self._places[bucket].slot
        is_free = at_work is None or self._places[at_work].slot != number
        if is_free and self._slots[number].bucket != bucket:
            self._start(bucket)

    def _start(self, bucket: Span) -> None:
        slot = self._slots[self._places[bucket].slot]
        slot.wait()
        slot.check()
        place, kept = self._places[bucket], self._kept.span(*self._own[bucket])
        own = place.span(*self._own[bucket]) if in_place.is_on_host(kept) else kept
        if own is not kept:
            in_place.assign(own, kept)
        work = self._group.all_gather(own, out=place.span(*bucket), async_op=True, about=self._names[bucket])
        slot.bucket, slot.arriving = bucket, work

    def keep(self, entry: Entry) -> None:
        """Take what is this rank's of a parameter from its slot, where new values were written; then the slot is
        vacant."""
        (bucket,) = (bucket for bucket in self._places if overlaps([entry.span], [bucket]))
        place = self._places[bucket]
        for run in overlaps([entry.span], self._kept.spans):
            in_place.assign(self._kept.span(*run), place.span(*run))
        slot = self._slots[place.slot]
        if slot.bucket is None:
            kernels.fill_(place.span(*entry.span), NOT_HERE)
        else:
            slot.vacate()

    def check(self) -> None:
        """Raise ValueError if values were assigned to parameters that are not here: a checkpoint would lack them."""
        for slot in self._slots.values():
            slot.wait()
            slot.check()

    def forget(self) -> None:
        """What is in the slots is stale: this rank's parameters were updated."""
        for slot in self._slots.values():
            slot.vacate()
