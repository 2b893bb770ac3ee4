"""The order of rows in Megatron's fused parameters: linear_qkv, and linear_fc1 of a gated activation.

n query heads, g key/value groups, d head size, t tensor-parallel size, f feed-forward size.
"""

from dataclasses import dataclass

GATED_PARTS = 2
"""The number of fused parts in linear_fc1 of a gated activation: f rows of the gate, then f rows of the features that
it multiplies (up). Each part is cut over the ranks on its own, so that a rank's rows are again gate, then up."""


def heads_of_group(query_heads: int) -> tuple[int, int, int]:
    """The numbers of heads in one key/value group of linear_qkv without gates, in order: its `query_heads` query heads
    (not the whole model's), its one key head, its one value head."""
    return query_heads, 1, 1


@dataclass(frozen=True)
class QueryKeyValueRows:
    """The order of linear_qkv's (n + 2 g) d rows (or of its output's columns), group by group; (2 n + 2 g) d with gates
    of attention's output, which in each group stand behind its queries. n `heads` and g `groups`, counted over all
    ranks, g a divisor of n; d `head_size`."""

    heads: int
    groups: int
    head_size: int
    gated: bool = False

    @property
    def count(self) -> int:
        """The number of rows of all groups on all ranks."""
        return self.groups * self._group_rows

    @property
    def _parts(self) -> tuple[int, ...]:
        """The number of heads in each part of a group, in order: queries, their gates if there are any, key, value."""
        queries, *others = heads_of_group(self.heads // self.groups)
        return (queries,) * (1 + self.gated) + tuple(others)

    @property
    def _group_rows(self) -> int:
        return sum(self._parts) * self.head_size

    def of_group(self, group: int) -> tuple[range, ...]:
        """The places in linear_qkv of the rows of group `group`, from 0: its query rows [n/g d], as many gates if there
        are any, its key rows [d] and its value rows [d]; n heads of size d, g groups."""
        ranges, start = [], group * self._group_rows
        for heads in self._parts:
            ranges.append(range(start, start + heads * self.head_size))
            start += heads * self.head_size
        return tuple(ranges)

    def of_sharing_rank(self, rank: int, size: int) -> tuple[range, ...]:
        """The places in linear_qkv of what rank `rank` has where `size` tensor-parallel ranks are more than the groups,
        so that several share one: its own query rows [n/t d], as many gates if there are any, and its group's key rows
        [d] and value rows [d]. n heads of size d, t: `size`, a divisor of n and a multiple of the groups."""
        group, place = divmod(rank, size // self.groups)
        *queries, key, value = self.of_group(group)
        own = self.heads // size * self.head_size
        return *(rows[place * own : (place + 1) * own] for rows in queries), key, value

    def apart(self) -> tuple[list[range], list[range], list[range]]:
        """The places in linear_qkv of all queries [n d], all keys [g d] and all values [g d], each group by group (n
        query heads, g groups, d head size). Gates, if there are any, are among the queries [2 n d]: each query head [d]
        is followed by its gate [d]."""
        queries: list[range] = []
        keys, values = [], []
        for group in range(self.groups):
            *of_queries, key, value = self.of_group(group)
            heads = len(of_queries[0]) if len(of_queries) == 1 else self.head_size
            queries += [rows[at : at + heads] for at in range(0, len(of_queries[0]), heads) for rows in of_queries]
            keys.append(key)
            values.append(value)
        return queries, keys, values

    def from_apart(self) -> list[range]:
        """For each head of linear_qkv, gates too, in its order, the range [d] of the places that its rows have in a
        tensor of all queries, then all keys, then all values, as `apart` puts them."""
        rows = [row for part in self.apart() for run in part for row in run]
        places = dict(zip(rows, range(self.count), strict=True))
        starts = [run.start for group in range(self.groups) for run in self._whole_heads(group)]
        return [range(places[start], places[start] + self.head_size) for start in starts]

    def _whole_heads(self, group: int) -> list[range]:
        size = self.head_size
        return [rows[at : at + size] for rows in self.of_group(group) for at in range(0, len(rows), size)]


def gated_halves(rows: int) -> tuple[range, range]:
    """The places of the gate's rows, the first half, and of the rows of up (the features that the gate multiplies), the
    second half, in a gated linear_fc1 of `rows` rows."""
    half = rows // GATED_PARTS
    return range(half), range(half, rows)
