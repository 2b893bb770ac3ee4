"""All parameters in one flat buffer and all gradients in another (DESIGN, decision 6).

One collective reduces every gradient, one sweep updates every weight. Parameters that are treated alike lie together:
an update is two slices, with weight decay and without, and what is summed over tensor parallelism is one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from mindspore import Parameter, Tensor, ops

from parallel_core.costs.parameters import aligned
from pynative import kernels
from pynative.collectives import Group
from pynative.distributed.flat_memory import FlatMemory
from pynative.parameter import set_main_grad


@dataclass(frozen=True)
class Piece:
    """Where a parameter lies in the buffers."""

    parameter: Parameter
    start: int
    size: int


@dataclass(frozen=True)
class Segment:
    """A contiguous run of parameters that share their weight decay."""

    start: int
    stop: int
    weight_decay_multiplier: float


class ParamAndGradBuffer:
    """The flat memory behind a model's parameters (`parameter` keeps its values) and their `main_grad`."""

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        ordered = sorted(parameters, key=lambda p: (not p.meta.spec.is_decayed, p.meta.spec.partial_over is not None))
        self.pieces = _lay_out(ordered)
        self.size = self.pieces[-1].start + aligned(self.pieces[-1].size) if self.pieces else 0
        self.parameters, self.gradients = FlatMemory(self.size), FlatMemory(self.size)
        for piece in self.pieces:
            self._adopt(piece)
        self.segments = _segments(self.pieces)

    def _adopt(self, piece: Piece) -> None:
        parameter = piece.parameter
        home = self.parameters.view(piece.start, tuple(parameter.shape))
        ops.assign(home, parameter)
        parameter.set_data(home)
        set_main_grad(parameter, self.gradients.view(piece.start, tuple(parameter.shape)))

    def empty_gradients(self) -> None:
        """Forget the gradients; the next contribution overwrites."""
        for piece in self.pieces:
            piece.parameter.meta.main_grad_is_empty = True

    def zero_unused_gradients(self) -> None:
        """Parameters that no micro-batch reached have gradient zero, not last step's."""
        for piece in self.pieces:
            if piece.parameter.meta.main_grad_is_empty:
                kernels.fill_(piece.parameter.main_grad, 0.0)
                piece.parameter.meta.main_grad_is_empty = False

    def all_reduce_gradients(self, group: Group) -> None:
        """Sum the gradients over the replicas, in place."""
        if group.size > 1:
            gradients = self.gradients.whole()
            group.all_reduce(gradients, out=gradients)

    def all_reduce_partial_gradients(self, group: Group) -> None:
        """Sum over the tensor-parallel group the gradients of which each rank has a share, in place."""
        if group.size > 1:
            for run in self.runs([piece.parameter.meta.spec.partial_over is not None for piece in self.pieces]):
                group.all_reduce(run, out=run)

    def runs(self, wanted: Sequence[bool]) -> list[Tensor]:
        """Views of the gradients of the wanted pieces, neighbours joined."""
        views = []
        for is_wanted, group in groupby(zip(self.pieces, wanted, strict=True), key=lambda pair: pair[1]):
            pieces = [piece for piece, _ in group]
            if is_wanted:
                start, stop = pieces[0].start, pieces[-1].start + pieces[-1].size
                views.append(self.gradients.view(start, (stop - start,)))
        return views


def _lay_out(parameters: Sequence[Parameter]) -> list[Piece]:
    pieces, start = [], 0
    for parameter in parameters:
        size = int(np.prod(parameter.shape))
        pieces.append(Piece(parameter, start, size))
        start += aligned(size)
    return pieces


def _segments(pieces: Sequence[Piece]) -> list[Segment]:
    segments = []
    for decayed, group in groupby(pieces, key=lambda piece: piece.parameter.meta.spec.is_decayed):
        run = list(group)
        segments.append(Segment(run[0].start, run[-1].start + aligned(run[-1].size), 1.0 if decayed else 0.0))
    return segments
