"""Exchange of a sequence's shards for shares of the features of whole sequences, for mixers that keep a state and so
need every token in its order.

It is Ulysses' exchange (Jacobs et al., 2023), of fused features, each part of which is cut over the ranks on its own,
over the whole context-parallel group, however attention's sequences lie over it. s the length of a rank's shard, S of
the whole sequence, b batch, w features, c ranks.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from mindspore import Tensor

from parallel_core.context import ContextLayout
from pynative import kernels
from pynative.collectives import Group
from pynative.tape.autograd import Moved


def of_rank(widths: Sequence[int], rank: int, size: int) -> list[range]:
    """A range of columns for each of the fused parts of these widths: the rank's equal share of the part. size: the
    number of ranks, which divides every width."""
    starts = [end - width for width, end in zip(widths, accumulate(widths), strict=True)]
    return [
        range(start + rank * (width // size), start + (rank + 1) * (width // size))
        for start, width in zip(starts, widths, strict=True)
    ]


def _reordered(x: Tensor, places: Any) -> Tensor:
    return kernels.gather_rows(x, places.astype(np.int32), x.shape[1:])


class _Exchange:
    """Both directions of the exchange, for features that are fused parts of these widths."""

    def __init__(self, widths: Sequence[int], group: Group, layout: ContextLayout) -> None:
        self.widths, self.group, self.layout = widths, group, layout
        self.by_rank = [run for rank in range(group.size) for run in of_rank(widths, rank, group.size)]

    def to_features(self, x: Tensor) -> Tensor:
        """x [s, b, w], a shard of the sequence with all features -> [S, b, w / c], the whole sequence with a share of
        each part."""
        packed = kernels.pack_heads((kernels.take_columns(x, self.by_rank),), self.group.size, (1,))
        shards = self.group.all_to_all(packed)
        return _reordered(shards, np.argsort(self.layout.order(len(shards)))) if self.layout.ring > 1 else shards

    def to_sequence(self, x: Tensor) -> Tensor:
        """x [S, b, w / c] -> [s, b, w]: the reverse of `to_features`."""
        shards = _reordered(x, self.layout.order(len(x))) if self.layout.ring > 1 else x
        width, size = sum(self.widths), self.group.size
        (rows,) = kernels.unpack_heads(self.group.all_to_all(shards), size, ((width,),), (1,))
        return kernels.take_columns(rows, self._back())

    def _back(self) -> list[range]:
        """The ranges of columns, to be taken in this order, that bring a tensor's columns, which lie rank by rank, back
        into the features' own order."""
        parts, size = len(self.widths), self.group.size
        ends = list(accumulate(map(len, self.by_rank)))
        there = [range(end - len(run), end) for run, end in zip(self.by_rank, ends, strict=True)]
        return [there[rank * parts + part] for part in range(parts) for rank in range(size)]


def sequence_to_features(x: Tensor, widths: Sequence[int], group: Group, layout: ContextLayout) -> Tensor:
    """x [s, b, w], fused parts of these widths, for a rank's shard of the sequence -> [S, b, w / c]: the rank's equal
    share, one of c, of each part, for all S tokens in the sequence's order. s is the length of a shard, S of the
    sequence, b the batch, w the features. layout: how the group's c ranks share the sequence out. On the tape; one
    all-to-all forward and one backward. A group of one returns x."""
    exchange = _Exchange(widths, group, layout)
    return x if group.size == 1 else Moved.apply(x, exchange.to_features, exchange.to_sequence)


def features_to_sequence(x: Tensor, group: Group, layout: ContextLayout) -> Tensor:
    """x [S, b, w / c], a rank's share, one of c, of the features of all S tokens -> [s, b, w], all features of its
    shard of the sequence: the reverse of `sequence_to_features` for features that are one part. s is the length of a
    shard, S of the sequence, b the batch, w the features. A group of one returns x."""
    exchange = _Exchange((x.shape[-1] * group.size,), group, layout)
    return x if group.size == 1 else Moved.apply(x, exchange.to_sequence, exchange.to_features)
