"""Tables [chunk][stage] of a number of layers, the first ones of the chunk, to which a setting applies; and the
notations in which users write them."""

from collections.abc import Iterator, Sequence
from typing import Any

Table = list[list[int]]


def all_of(counts: Table) -> Table:
    """The table in which a setting applies to every layer. counts: the layers of each [chunk][stage]."""
    return [list(row) for row in counts]


def none_of(counts: Table) -> Table:
    """The table in which a setting applies to no layer. counts: the layers of each [chunk][stage]."""
    return [[0] * len(row) for row in counts]


def first_of(layers: int, counts: Table) -> Table:
    """The table whose entry [chunk][stage] is `layers`, or the chunk's number of layers (`counts` [chunk][stage]) if
    smaller."""
    return [[min(layers, count) for count in row] for row in counts]


def dealt(layers: Sequence[int], counts: Table) -> Table:
    """The table [chunk][stage] that deals each stage's number in `layers` over the stage's chunks, one layer to each in
    turn. A chunk whose layers (`counts` [chunk][stage]) are used up is passed over; a number above the stage's layers
    is cut to them."""
    table = none_of(counts)
    for stage, wanted in enumerate(layers):
        left = min(wanted, sum(row[stage] for row in counts))
        while left:
            open_chunks = [c for c, row in enumerate(counts) if table[c][stage] < row[stage]]
            for chunk in open_chunks[:left]:
                table[chunk][stage] += 1
            left -= len(open_chunks[:left])
    return table


def table_of(value: Any, counts: Table) -> Table:
    """The table [chunk][stage] of a setting: true for all layers, false or None for none; a list of each stage's
    number, dealt over its chunks; or such a list for each chunk. A number beyond the layers there are is cut. True and
    false may stand for a number, and beside a list for another chunk's list. counts: the layers of each [chunk][stage].

    Raises ValueError for anything else.
    """
    if value is None or isinstance(value, bool):
        return all_of(counts) if value else none_of(counts)
    chunks, stages = len(counts), len(counts[0])
    if isinstance(value, list | tuple) and value:
        if not any(isinstance(row, list | tuple) for row in value):
            if len(value) == stages:
                return dealt([_number(entry, sum(row[s] for row in counts)) for s, entry in enumerate(value)], counts)
        elif len(value) == chunks and all(isinstance(row, bool) or len(row) == stages for row in _rows(value)):
            return [_row(row, of_chunk) for row, of_chunk in zip(value, counts, strict=True)]
    raise ValueError(f"must be true, false, a list of {stages} stages' layers, or for {chunks} chunks such a list each")


def _rows(value: Sequence[Any]) -> Iterator[Any]:
    for row in value:
        if not isinstance(row, bool | list | tuple):
            raise ValueError(f"has {row!r} beside lists: write a list or true or false for each chunk")
        yield row


def _row(row: Any, counts: list[int]) -> list[int]:
    entries = [row] * len(counts) if isinstance(row, bool) else row
    return [min(_number(entry, count), count) for entry, count in zip(entries, counts, strict=True)]


def _number(entry: Any, all_layers: int) -> int:
    if isinstance(entry, bool):
        return all_layers if entry else 0
    if not isinstance(entry, int) or entry < 0:
        raise ValueError(f"has {entry!r}: write a number of layers, true or false")
    return entry


def beyond(value: Any, counts: Table) -> Iterator[str]:
    """A clause for each number in a valid setting of `table_of`, or in a dictionary of such, that exceeds the layers
    there are: of its stage, or in a list by chunk of its chunk on that stage. counts: the layers of each
    [chunk][stage]."""
    if isinstance(value, dict):
        yield from (f"{pattern}: {clause}" for pattern, part in value.items() for clause in beyond(part, counts))
    if not isinstance(value, list | tuple):
        return
    nested = any(isinstance(row, list | tuple) for row in value)
    rows = value if nested else [value]
    there = counts if nested else [[sum(row[stage] for row in counts) for stage in range(len(counts[0]))]]
    for chunk, (row, layers) in enumerate(zip(rows, there, strict=True)):
        for stage, (wanted, count) in enumerate(
            zip(row if isinstance(row, list | tuple) else (), layers, strict=False)
        ):
            if not isinstance(wanted, bool | str) and wanted > count:
                yield f"stage {stage}{f', chunk {chunk},' * nested} has {count} layers, not {wanted}"


def tables_of(value: Any, counts: Table, default_patterns: Sequence[str]) -> dict[str, Table]:
    """Pattern of modules -> table [chunk][stage]. A dictionary gives each pattern a setting of `table_of`; a pattern or
    a list of patterns applies to all layers; a setting without patterns applies to `default_patterns`, and is not read
    where these are empty. counts: as in `table_of`. Raises ValueError for a setting that `table_of` refuses."""
    if isinstance(value, dict):
        return {str(pattern): table_of(setting, counts) for pattern, setting in value.items()}
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple) and value and all(isinstance(entry, str) for entry in value):
        return {pattern: all_of(counts) for pattern in value}
    return {pattern: table_of(value, counts) for pattern in default_patterns}


def as_logged(tables: dict[str, Table]) -> str:
    """Tables by pattern as the log shows them: a dictionary's text, patterns as the user wrote them."""
    return "{" + ", ".join(f"'{pattern}': {table}" for pattern, table in tables.items()) + "}"
