"""A bucket whose gradients are whole for a moment only (ZeRO stage 2 and 3): its cell's backward writes them into a
slot, and after it, in every micro-batch, they are summed from there into the part that the rank keeps."""

from collections.abc import Sequence

from mindspore import Parameter

from parallel_core.buffers.collectives import Collective
from parallel_core.buffers.layout import Entry, overlaps
from pynative import kernels
from pynative.distributed.bucket import ParamAndGradBucket, Transfer
from pynative.distributed.flat_memory import FlatMemory, InSlot, SomeMemory
from pynative.memory import in_place


class Turn:
    """Lets one bucket's reduce-scatter be in flight at a time. While its gradients leave their slot, the next bucket's
    can be computed in another slot; they leave when the first have."""

    def __init__(self) -> None:
        self._leaving: TransientBucket | None = None

    def take(self, bucket: "TransientBucket") -> None:
        """Wait for the bucket that is leaving its slot, as `finish` does, and note that `bucket` is the one that leaves
        now."""
        self.finish()
        self._leaving = bucket

    def vacate(self, slot: int) -> None:
        """Wait for the bucket that is leaving, as `finish` does, if its slot has this number, in whichever buffer."""
        if self._leaving is not None and self._leaving.slot == slot:
            self.finish()

    def finish(self) -> None:
        """Wait for the bucket that is leaving, if there is one, and have it `collect` its sum."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.collect()


class TransientBucket(ParamAndGradBucket):
    """Parameters of one cell, whose gradients are reduce-scattered in every micro-batch that has a backward of it.

    Args:
        slot: the place in which the gradients are written.
        kept: the memory of the gradients that the rank keeps: of this bucket its own part.
        turn: the Turn that all transient buckets of the model's buffers share.
    """

    def __init__(
        self,
        entries: Sequence[tuple[Entry, Parameter]],
        slot: InSlot,
        kept: FlatMemory,
        parameters: SomeMemory,
        reductions: Sequence[Collective],
        gathers: Sequence[Collective],
        turn: Turn,
        sent_as: str | None = None,
    ) -> None:
        super().__init__(slot.bucket, [p for _, p in entries], slot, parameters, reductions[:1], gathers, sent_as)
        self.cell, self.slot = slot.cell, slot.slot
        (own,) = overlaps([slot.bucket], kept.spans)
        self._own, self._sum, self._turn = slot.span(*own), kept.span(*own), turn
        about = f"gradients of {self.about}"
        self._over_instances = [Transfer.of(one, kept, about, sent_as) for one in reductions[1:]]
        self._padding = slot.padding([entry for entry, _ in entries])
        self._was_started = self._has_sum = False

    def empty_gradients(self, factor_before_sum: float = 1.0) -> None:
        """Mark the gradients as empty: the first sum that `collect` gets overwrites what is kept. factor_before_sum
        multiplies gradients before they are summed over the replicas."""
        super().empty_gradients(factor_before_sum)
        self._was_started = self._has_sum = False

    def start_grad_sync(self) -> None:
        """Send, at the step's end, gradients that have not left the slot, or zeros if no micro-batch sent any; else do
        nothing."""
        if not self._was_started or any(not parameter.meta.main_grad_is_empty for parameter in self.params):
            self.send()

    def send(self) -> None:
        """Start the reduce-scatter of a micro-batch's gradients, once the bucket that is leaving has left; of zeros for
        parameters without any on this rank, because others may have some."""
        self._was_started = self._grad_sync_is_due = True
        self._turn.take(self)
        for gap in self._padding:
            kernels.fill_(gap, 0.0)
        super().start_grad_sync()
        for parameter in self.params:
            parameter.meta.main_grad_is_empty, parameter.meta.main_grad_is_final = True, False

    def collect(self) -> None:
        """Wait for the micro-batch's reduce-scatter, and add this rank's part to what it keeps; the step's first one
        overwrites that."""
        super().finish_grad_sync()
        if self._has_sum:
            kernels.add_(self._sum, self._own)
        else:
            in_place.assign(self._sum, self._own)
        self._has_sum = True

    def finish_grad_sync(self) -> None:
        """Wait until the gradients that this rank owns are the sum over all micro-batches and replicas. Call it once a
        step, after `start_grad_sync`."""
        self._turn.finish()
        for one in self._over_instances:
            one.start().wait()

    def _spoiled(self) -> str:
        return self.about
