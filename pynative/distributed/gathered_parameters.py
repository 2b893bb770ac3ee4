"""Weights of which a rank keeps its own part (ZeRO stage 3), gathered into a slot for their cell.

`zero.py` has the life of a slot, and when it changes state.
"""

from collections.abc import Sequence
from functools import partial

import mindspore
import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.buffers.layout import Entry, overlaps
from parallel_core.buffers.stretch import Stretch
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.collectives import Group, Handle
from pynative.distributed.flat_memory import InSlot, SomeMemory
from pynative.memory import in_place
from pynative.memory.rounding import bits

NOT_HERE = -1024.0
"""The value of every element of an empty slot: not a likely weight, so that it shows, and not NaN, so that values that
a script computes from it and assigns can be told from it, too."""


class WeightSlot:
    """A slot's memory, for one bucket of weights at a time, and `bucket`, the one that is in it or on its way there;
    None: the slot is empty."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.bucket: GatheredBucket | None = None
        self.free()

    def free(self) -> None:
        """Wait for a gather into the slot, if one is under way; then mark it empty and fill it with NOT_HERE
        (-1024)."""
        if self.bucket is not None:
            self.bucket.wait()
        self.bucket = None
        kernels.fill_(self.memory, NOT_HERE)

    def check(self) -> None:
        """Raise ValueError if the slot is empty, but has other values than NOT_HERE, which somebody wrote there: they
        would be lost."""
        if self.bucket is None and not self._is_empty():
            raise ValueError(
                "parameters: some were assigned values, of which nothing is kept, because with --zero-stage 3 a rank "
                "keeps its part of each; write them by pynative.checkpointing.load_weights"
            )

    def _is_empty(self) -> bool:
        """Whether every element is still NOT_HERE."""
        on_host: Array | None = getattr(self.memory, "host_memory", None)
        if on_host is None:
            return bool((self.memory.astype(mindspore.float32) == NOT_HERE).all())
        return bool((bits(on_host) == bits(np.array(NOT_HERE, on_host.dtype))).all())


class GatheredBucket:
    """The parameters of one cell in one buffer, gathered into a slot from the ranks' parts. On another device than
    a CPU the part that the rank keeps may lie in host memory: it is then copied into the slot first.

    Args:
        entries: those of the whole buffer; the bucket takes the ones that lie in it.
        place: the bucket in its slot.
        kept: the memory of what the rank keeps: of this bucket its own part.
        group: the ranks that share the bucket out.
    """

    def __init__(
        self,
        entries: Sequence[tuple[Entry, Parameter]],
        place: InSlot,
        slot: WeightSlot,
        kept: SomeMemory,
        group: Group,
    ) -> None:
        self.slot, self._place, self._kept = slot, place, kept
        (self._own,) = overlaps([place.bucket], kept.spans)
        self._part, self._whole = kept.span(*self._own), place.span(*place.bucket)
        self._sent = place.span(*self._own) if in_place.is_on_host(self._part) else self._part
        self._arriving: Handle | None = None
        inside = [(entry, parameter) for entry, parameter in entries if overlaps([entry.span], [place.bucket])]
        names = f"{inside[0][0].spec.name} and {len(inside) - 1} more"
        about = f"parameters {names}, which --zero-stage 3 gathers when a layer is called"
        self._gather = partial(group.all_gather, out=self._whole, async_op=True, about=about)
        for entry, parameter in inside:
            self._adopt(entry, parameter)

    def _adopt(self, entry: Entry, parameter: Parameter) -> None:
        """Make the slot a parameter's memory, keep the rank's part of its values, and set `fetch`, `keep` and `kept` of
        its record."""
        view = self._place.view(entry.start, entry.place.shape)
        in_place.assign(view, parameter)
        parameter.set_data(view)
        self.keep(entry)
        parameter.meta.fetch, parameter.meta.keep = self.need, partial(self.keep, entry)
        for run in overlaps([entry.span], [self._own]):
            parameter.meta.kept = Stretch.of(entry, run), self._kept.span(*run)

    def need(self) -> None:
        """Bring the bucket's whole weights into the slot, unless they are there, and wait for them; all ranks of the
        group call this. Raises ValueError as `arrive`."""
        self.arrive()
        self.wait()

    def arrive(self) -> None:
        """Start to gather the bucket's weights into its slot, in place of what is there; nothing if they are there or
        on their way. Raises ValueError as `WeightSlot.check`."""
        if self.slot.bucket is self:
            return
        if self.slot.bucket is not None:
            self.slot.bucket.wait()
        self.slot.check()
        if self._sent is not self._part:
            in_place.assign(self._sent, self._part)
        self.slot.bucket, self._arriving = self, self._gather(self._sent)

    def wait(self) -> None:
        """Wait for the gather that `arrive` started, if it is under way."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            arriving.wait()

    def keep(self, entry: Entry) -> None:
        """Copy the rank's part of a parameter from the slot, where new values were written, to the memory of what the
        rank keeps; then free the slot, or if no bucket was in it mark this parameter's elements alone as empty."""
        for run in overlaps([entry.span], [self._own]):
            in_place.assign(self._kept.span(*run), self._place.span(*run))
        if self.slot.bucket is None:
            kernels.fill_(self._place.span(*entry.span), NOT_HERE)
        else:
            self.slot.free()
