"""ZeRO's stages 2 and 3 on a rank: which cell needs which buckets, and what its events set off.

"ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (Rajbhandari et al., 2020). A cell's buckets are
whole while it is at work (`parallel_core.buffers.slots`): gradients leave when they are complete, in every micro-batch;
parameters arrive before its forward and its backward, while the cell before it is at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from mindspore import Parameter, nn

from parallel_core.buffers import Span, Visits
from pynative.distributed.bucket import look_in
from pynative.distributed.gathered_parameters import GatheredParameters
from pynative.distributed.transient_bucket import TransientBucket, Turn
from pynative.tape import autograd
from pynative.tape.layer_events import LayerEvents


class Cells:
    """The observed cells of the chunks that some parameters belong to, numbered in the order of the model."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        found = (parameter.meta.layer_events for parameter in parameters)
        self.events: list[LayerEvents] = list({id(one): one for one in found if one is not None}.values())
        cells = [(events, cell) for events in self.events for cell in events.cells]
        self._numbers = {id(cell): number for number, (_, cell) in enumerate(cells)}
        own = {id(p): number for number, (events, cell) in enumerate(cells) for p in events.parameters(cell)}
        self.of_parameters = [own.get(id(parameter)) for parameter in parameters]
        """The number of each parameter's cell; none: it belongs to no cell."""

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, cell: nn.Cell) -> int | None:
        """Of a cell; a chunk, of which its events tell too, has none."""
        return self._numbers.get(id(cell))


class SendGradients:
    """Has each cell's gradients leave their slots when they are complete, as long as this object is there.

    Args:
        buckets: by the number of their cell.
        overlaps: whether the backward goes on meanwhile.
    """

    def __init__(
        self, cells: Cells, buckets: Mapping[int, Sequence[TransientBucket]], turn: Turn, overlaps: bool
    ) -> None:
        self._cells, self._buckets, self._turn, self._overlaps = cells, buckets, turn, overlaps
        for events in cells.events if buckets else ():
            events.listen("before_backward", self._before_backward)
            events.listen("after_backward", self._after_backward)
        for parameter in (p for of_cell in buckets.values() for bucket in of_cell for p in bucket.params):
            parameter.meta.after_contribution = look_in

    def _buckets_of(self, cell: nn.Cell) -> Sequence[TransientBucket]:
        number = self._cells.number(cell)
        return () if number is None else self._buckets.get(number, ())

    def _before_backward(self, cell: nn.Cell) -> None:
        """Before its gradients are written: the neighbour whose turn would have ended that of the cell before it may be
        frozen, or not called."""
        for bucket in self._buckets_of(cell):
            autograd.after_weight_gradients(partial(self._turn.vacate, bucket.slot))

    def _after_backward(self, cell: nn.Cell) -> None:
        for bucket in self._buckets_of(cell):
            bucket.send()
        if self._cells.number(cell) is None or not self._overlaps:
            self._turn.finish()


class FetchParameters:
    """Has each cell's parameters in their slots before it works, and those of the next one on their way: as long as
    the model is there, which cannot do without."""

    fetches_ahead = True

    def __init__(self, cells: Cells, buckets: Mapping[int, Mapping[GatheredParameters, Span]]) -> None:
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
        own, coming = self._buckets.get(number, {}), self._visits.enter(number)
        for parameters, bucket in own.items():
            parameters.need(bucket)
        if coming is not None and self.fetches_ahead:
            for parameters, bucket in self._buckets.get(coming, {}).items():
                parameters.fetch_ahead(bucket, own.get(parameters))
