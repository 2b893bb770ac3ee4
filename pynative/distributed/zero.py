"""ZeRO's stages 2 and 3 on a rank: the life of a slot, and the events of cells that move it on.

"ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (Rajbhandari et al., 2020). A cell's buckets are
whole in a slot while it is at work (`parallel_core.buffers.slots` plans which one):

| a slot is | with weights (stage 3: `gathered_parameters.py`) | with gradients (stages 2, 3: `transient_bucket.py`) |
|---|---|---|
| empty | from `WeightSlot.free`, as after the update, to the next gather | before the cell's backward writes there |
| arriving | from `GatheredBucket.arrive`, at the cell's turn or at that of the cell before it | never |
| whole | from the cell's turn (`need`) to another gather into the slot, or `free` | in the cell's backward |
| leaving | never: the rank has kept its part | after it: `TransientBucket.send` to `collect`, one bucket at a time |
"""

from collections.abc import Mapping, Sequence
from functools import partial

from mindspore import Parameter, nn

from parallel_core.buffers.slots import Visits
from pynative import parallel_state
from pynative.distributed.gathered_parameters import GatheredBucket
from pynative.distributed.transient_bucket import TransientBucket, Turn
from pynative.tape import autograd
from pynative.tape.layer_events import LayerEvents, after_weight_gradients


class Cells:
    """The cells, such as layers, that `LayerEvents` observes in the chunks that the given parameters belong to,
    numbered from 0: chunk after chunk as the parameters come, in a chunk in the model's order."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        found = (parameter.meta.layer_events for parameter in parameters)
        self.events: list[LayerEvents] = list({id(one): one for one in found if one is not None}.values())
        cells = [(events, cell) for events in self.events for cell in events.cells]
        self._numbers = {id(cell): number for number, (_, cell) in enumerate(cells)}
        own = {id(p): number for number, (events, cell) in enumerate(cells) for p in events.parameters(cell)}
        self.of_parameters = [own.get(id(parameter)) for parameter in parameters]
        """For each parameter the number of its cell; None: it belongs to no observed cell."""

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, cell: nn.Cell) -> int | None:
        """The number of an observed cell; None for a chunk, whose events come too."""
        return self._numbers.get(id(cell))


class SendGradients:
    """Sends each cell's gradients out of their slots when they are complete, as long as this object exists.

    Args:
        buckets: by the number of their cell.
        turn: the Turn that all these buckets share.
        overlaps: whether the backward goes on while gradients travel; else it waits for each cell's.
    """

    def __init__(
        self, cells: Cells, buckets: Mapping[int | None, Sequence[TransientBucket]], turn: Turn, overlaps: bool
    ) -> None:
        self._cells, self._buckets, self._turn, self._overlaps = cells, buckets, turn, overlaps
        for events in cells.events if buckets else ():
            events.listen("before_backward", self._before_backward)
            events.listen("after_backward", self._after_backward)
        for parameter in (p for of_cell in buckets.values() for bucket in of_cell for p in bucket.params):
            parameter.meta.after_contribution = parallel_state.get_backend().progress

    def _before_backward(self, cell: nn.Cell) -> None:
        """Wait, before a cell's gradients are written into their slot, for another cell's bucket that may still be
        leaving it: the cell whose turn comes between the two would have waited, but may be frozen, or not called."""
        for bucket in self._buckets.get(self._cells.number(cell), ()):
            after_weight_gradients(partial(self._turn.vacate, bucket.slot))

    def _after_backward(self, cell: nn.Cell) -> None:
        number = self._cells.number(cell)
        for bucket in self._buckets.get(number, ()):
            bucket.send()
        if number is None or not self._overlaps:
            self._turn.finish()


class FetchParameters:
    """Brings each cell's parameters into their slots before the cell works, and starts to bring those of the next cell,
    once it is known which one that is, if their slot is another one; it does so as long as the model exists."""

    fetches_ahead = True

    def __init__(self, cells: Cells, buckets: Mapping[int, Sequence[GatheredBucket]]) -> None:
        self._cells, self._buckets, self._visits = cells, buckets, Visits()
        for events in cells.events:
            events.on("before_forward", self._before_forward)
            events.on("before_backward", self._before)

    def _before_forward(self, cell: nn.Cell) -> None:
        if self._cells.number(cell) is None:
            self._visits.begin(autograd.is_recording())
        self._before(cell)

    def _before(self, cell: nn.Cell) -> None:
        number = self._cells.number(cell)
        if number is None:
            return
        own, coming = self._buckets.get(number, ()), self._visits.enter(number)
        for bucket in own:
            bucket.need()
        if coming is not None and self.fetches_ahead:
            at_work = [bucket.slot for bucket in own]
            for bucket in self._buckets.get(coming, ()):
                if bucket.slot not in at_work:
                    bucket.arrive()
