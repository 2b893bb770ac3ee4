"""The rows of fused parameters in Megatron's order: the one home that specs, kernels and converters read.

n query heads, g key/value groups, d head size, t tensor-parallel size, f feed-forward size.
"""

from dataclasses import dataclass

GATED_PARTS = 2
"""linear_fc1 of a gated activation: f rows of the gate, then f rows of what it multiplies (up). Each part is cut over
the ranks on its own, so that a rank's rows are again gate, then up."""


def heads_of_group(query_heads: int) -> tuple[int, int, int]:
    """linear_qkv is made of groups; the heads of a group, in order: its query heads, its key head, its value head."""
    return query_heads, 1, 1


@dataclass(frozen=True)
class QueryKeyValueRows:
    """The (n + 2 g) d rows of linear_qkv, or columns of what it gives."""

    heads: int
    groups: int
    head_size: int

    @property
    def count(self) -> int:
        """All rows."""
        return self.groups * self._group_rows

    @property
    def _group_rows(self) -> int:
        return sum(heads_of_group(self.heads // self.groups)) * self.head_size

    def of_group(self, group: int) -> tuple[range, range, range]:
        """A group's query rows [n/g d], key rows [d] and value rows [d]."""
        ranges, start = [], group * self._group_rows
        for heads in heads_of_group(self.heads // self.groups):
            ranges.append(range(start, start + heads * self.head_size))
            start += heads * self.head_size
        query, key, value = ranges
        return query, key, value

    def of_sharing_rank(self, rank: int, size: int) -> tuple[range, range, range]:
        """Where t ranks share g < t groups: a rank's own query rows [n/t d], and its group's key and value rows."""
        group, place = divmod(rank, size // self.groups)
        query, key, value = self.of_group(group)
        own = self.heads // size * self.head_size
        return query[place * own : (place + 1) * own], key, value

    def apart(self) -> tuple[list[range], list[range], list[range]]:
        """Where all queries [n d], all keys [g d] and all values [g d] lie, group by group."""
        groups = [self.of_group(group) for group in range(self.groups)]
        queries, keys, values = map(list, zip(*groups, strict=True))
        return queries, keys, values

    def from_apart(self) -> list[range]:
        """Where the rows come from, in order, if queries, keys and values lie one after another: [n d; g d; g d]."""
        size = self.head_size
        queries, keys = self.heads // self.groups * size, self.heads * size
        values = keys + self.groups * size
        return [
            part
            for g in range(self.groups)
            for part in (
                range(g * queries, (g + 1) * queries),
                range(keys + g * size, keys + (g + 1) * size),
                range(values + g * size, values + (g + 1) * size),
            )
        ]


def gated_halves(rows: int) -> tuple[range, range]:
    """The gate's rows and up's rows of a gated linear_fc1 of `rows` rows."""
    half = rows // GATED_PARTS
    return range(half), range(half, rows)
