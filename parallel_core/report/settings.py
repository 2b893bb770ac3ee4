"""The sections of a page with configuration, flags and environment of runs beside each other; differences are
marked."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parallel_core.report.parts import ABSENT, Section, Table
from parallel_core.report.run import Run


def sections(runs: Sequence[Run]) -> Iterator[Section]:
    """Sections for flags, configuration and environment of each run's last start, as far as any run has them."""
    flags = [_flags(run.start.get("flags")) for run in runs]
    options = [dict(flat(run.start.get("config"), "")) for run in runs]
    environment = [dict(flat(run.start.get("environment"), "")) for run in runs]
    yield from _section("flags", "Flags, and what became of them", "flag", runs, flags)
    yield from _section("configuration", "Configuration", "option", runs, options)
    yield from _section("environment", "Environment", "name", runs, environment)


def _section(
    id: str, title: str, name: str, runs: Sequence[Run], columns: Sequence[Mapping[str, str]]
) -> Iterator[Section]:
    table = beside(title, name, [run.name for run in runs], columns)
    if table.rows:
        note = f"{len(table.marked)} of {len(table.rows)} differ between the runs." if len(runs) > 1 else ""
        yield Section(id, title, note, tables=[table])


def beside(caption: str, name: str, runs: Sequence[str], columns: Sequence[Mapping[str, str]]) -> Table:
    """A table with a row for each key that any of `columns` has and a column for each run; rows in which runs differ
    are marked. name: the heading over the keys."""
    names = list(dict.fromkeys(key for column in columns for key in column))
    rows = [[key, *(column.get(key, ABSENT) for column in columns)] for key in names]
    marked = [number for number, (_, *cells) in enumerate(rows) if len(set(cells)) > 1]
    return Table(caption, [name, *runs], rows, marked)


def flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path of keys joined by ".", value as text) of every leaf of nested mappings, below `path`; an empty mapping is a
    leaf. Nothing for a `value` that is itself a leaf if `path` is empty."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, _word(value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _flags(given: Any) -> dict[str, str]:
    """Flag -> its value and its effect (status, target, reason) as text; of a flag that was given several times all of
    them."""
    found: dict[str, str] = {}
    for one in given if isinstance(given, list) else ():
        if isinstance(one, Mapping):
            where = f" -> {one['target']}" if one.get("target") else ""
            why = f" ({one['reason']})" if one.get("reason") else ""
            words = f"{_word(one.get('value'))}: {one.get('status', '')}{where}{why}"
            name = str(one.get("flag", ""))
            found[name] = f"{found[name]}; {words}" if name in found else words
    return found
