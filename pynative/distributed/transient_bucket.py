"""A bucket whose gradients are whole for a moment only (ZeRO stage 2): its cell's backward writes them into a slot, and
they leave it, in every micro-batch, for the sums that the ranks keep."""

from collections.abc import Sequence

from mindspore import Parameter

from parallel_core.buffers.collectives import Collective
from parallel_core.buffers.layout import Entry, overlaps
from pynative import kernels
from pynative.distributed.bucket import ParamAndGradBucket, Transfer
from pynative.distributed.flat_memory import FlatMemory, InSlot, SomeMemory
from pynative.memory import in_place


class Turn:
    """Lets one bucket's reduce-scatter be in flight at a time. While its gradients leave their slot the next one, which
    has another, fills; that one's turn comes when the first has left."""

    def __init__(self) -> None:
        self._leaving: TransientBucket | None = None

    def take(self, bucket: "TransientBucket") -> None:
        """Another bucket leaves now."""
        self.finish()
        self._leaving = bucket

    def vacate(self, slot: int) -> None:
        """Wait until nothing leaves this slot any more."""
        if self._leaving is not None and self._leaving.slot == slot:
            self.finish()

    def finish(self) -> None:
        """Wait until the last one has left."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.collect()


class TransientBucket(ParamAndGradBucket):
    """Parameters of one cell, whose gradients are summed over the replicas in every micro-batch.

    Args:
        slot: where the gradients are written.
        kept: the gradients that the rank keeps: of this bucket its own part.
        turn: of all transient buckets of the rank.
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
        """Forget the gradients: the first sum overwrites."""
        super().empty_gradients(factor_before_sum)
        self._was_started = self._has_sum = False

    def start_grad_sync(self) -> None:
        """Send, at the step's end, the gradients that have not left. Nothing if all has."""
        if not self._was_started or any(not parameter.meta.main_grad_is_empty for parameter in self.params):
            self.send()

    def send(self) -> None:
        """Start the sum of a micro-batch's gradients over the replicas: zeros if this rank has none, because others may
        have some."""
        self._was_started = self._grad_sync_is_due = True
        self._turn.take(self)
        for gap in self._padding:
            kernels.fill_(gap, 0.0)
        super().start_grad_sync()
        for parameter in self.params:
            parameter.meta.main_grad_is_empty, parameter.meta.main_grad_is_final = True, False

    def collect(self) -> None:
        """Wait until the micro-batch's gradients are the replicas' sum, and add what of that is this rank's."""
        super().finish_grad_sync()
        if self._has_sum:
            kernels.add_(self._sum, self._own)
        else:
            in_place.assign(self._sum, self._own)
        self._has_sum = True

    def finish_grad_sync(self) -> None:
        """Wait until the gradients that this rank owns are the sum of all micro-batches over the replicas."""
        self._turn.finish()
        for one in self._over_instances:
            one.start().wait()

    def _spoiled(self) -> str:
        return self.about
