"""Collectives of buckets in time: sums of gradients during the backward, gathers of parameters during the forward.

A bucket's sum starts in the last micro-batch's backward, when its cells and those of the buckets before it are
complete, at the latest at the end of that backward. Its gather starts after the update and is waited for by the first
cell that needs its parameters. `OverlappedSums` and `OverlappedGathers` say which buckets are left out. Between layers,
and after weight gradients, a computing rank lets the collectives that are under way go on. All ranks of a group start
its collectives in the same order.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mindspore import nn

from pynative import parallel_state
from pynative.distributed.bucket import ParamAndGradBucket
from pynative.tape.layer_events import LayerEvents


class OverlappedSums:
    """Starter of buckets' gradient sums while the backward runs; buckets of several chunks, or of none, are left to the
    step's end."""

    def __init__(self, buckets: Iterable[ParamAndGradBucket]) -> None:
        self._chunks = [_ChunkSums(*of_chunk) for of_chunk in _by_chunk(buckets).items()]

    def enable(self, enable: bool, events: LayerEvents) -> None:
        """Let backwards of the chunk with these events start sums from now on, or not."""
        for chunk in self._chunks:
            if chunk.events is events:
                chunk.is_enabled = enable


class _ChunkSums:
    """The gradient sums of one chunk's buckets, started in the order in which a backward completes the buckets'
    cells."""

    def __init__(self, events: LayerEvents, buckets: Sequence[ParamAndGradBucket]) -> None:
        self._chunk, self.events, self.is_enabled = events.chunk, events, True
        place = {id(cell): i for i, cell in enumerate([*reversed(events.cells), events.chunk])}
        cells = [(bucket, _cells_of(bucket, events)) for bucket in buckets]
        self._buckets = sorted(cells, key=lambda pair: max(place[cell] for cell in pair[1]))
        self._complete: set[int] = set()
        self._started = 0
        self._progress = parallel_state.get_backend().progress
        events.listen("before_backward", self._look_in)
        events.listen("after_backward", self._cell_is_complete)
        for parameter in (parameter for bucket in buckets for parameter in bucket.params):
            parameter.meta.after_contribution = self._progress

    def _look_in(self, cell: nn.Cell) -> None:
        self._progress()

    def _cell_is_complete(self, cell: nn.Cell) -> None:
        if self.events.is_last_micro_batch and self.is_enabled:
            self._complete.add(id(cell))
            is_end = cell is self._chunk
            while self._started < len(self._buckets) and (is_end or self._buckets[self._started][1] <= self._complete):
                self._buckets[self._started][0].start_grad_sync()
                self._started += 1
            if is_end:
                self._complete, self._started = set(), 0
        self._progress()


class OverlappedGathers:
    """Waits, where a cell needs them, for parameters that are gathered after the update, instead of right after it.

    Buckets with parameters of no observed cell, or of several chunks, are waited for by `finish_others`.
    """

    def __init__(self, buckets: Sequence[ParamAndGradBucket]) -> None:
        self._progress = parallel_state.get_backend().progress
        self._needed: dict[int, list[ParamAndGradBucket]] = defaultdict(list)
        waited_for: list[ParamAndGradBucket] = []
        for events, of_chunk in _by_chunk(buckets).items():
            for bucket in of_chunk:
                cells = _cells_of(bucket, events)
                if id(events.chunk) not in cells:
                    waited_for.append(bucket)
                    for cell in cells:
                        self._needed[cell].append(bucket)
            events.listen("before_forward", self._wait_for)
        self._others = [bucket for bucket in buckets if bucket not in waited_for]

    def finish_others(self) -> None:
        """Wait for the gathers of the buckets that no cell will wait for."""
        for bucket in self._others:
            bucket.finish_param_sync()

    def _wait_for(self, cell: nn.Cell) -> None:
        for bucket in self._needed.get(id(cell), ()):
            bucket.finish_param_sync()
        self._progress()


def _by_chunk(buckets: Iterable[ParamAndGradBucket]) -> dict[LayerEvents, list[ParamAndGradBucket]]:
    """The buckets all of whose parameters belong to one chunk, by the chunk's events."""
    chunks = defaultdict(list)
    for bucket in buckets:
        events, *more = {parameter.meta.layer_events for parameter in bucket.params}
        if events is not None and not more:
            chunks[events].append(bucket)
    return chunks


def _cells_of(bucket: ParamAndGradBucket, events: LayerEvents) -> set[int]:
    """Ids of the observed cells, or of the chunk for parameters of none, that a bucket's parameters belong to."""
    inside = {id(parameter) for parameter in bucket.params}
    cells = [*events.cells, events.chunk]
    return {id(cell) for cell in cells if any(id(parameter) in inside for parameter in events.parameters(cell))}
