"""Flags for one field of which one replaces what another says."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from mapping.derive.values import field_values
from mapping.given import Given
from parallel_core.config.base import Unknown
from parallel_core.findings import Finding, shown


def contradictions(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    """Those without which every field is the same, although alone they say something else.

    Flags that say the same twice agree, and a flag may say what becomes of it beside others (`Flag.idle`).
    """
    for entries in _of_one_field(given):
        for entry in entries:
            others = [other for other in entries if other is not entry]
            if _is_replaced(args, entry, others) and not entry.row.why_idle(args):
                other = next((other for other in others if not _is_replaced(args, other, [entry])), others[0])
                rule = f"contradicts {shown(other.name, other.words)}"
                yield Finding(entry.name, entry.words, rule, "leave one of them out", entry.source)


def _of_one_field(given: Sequence[Given]) -> Iterator[list[Given]]:
    """The last value of each argument, where several that are not at their default say what a field is."""
    by_target: dict[str, dict[str, Given]] = defaultdict(dict)
    for entry in given:
        if entry.row.target and not (entry.says_nothing or entry.row.refines):
            by_target[entry.row.target][entry.row.dest] = entry
    return (list(entries.values()) for entries in by_target.values() if len(entries) > 1)


def _is_replaced(args: Any, entry: Given, others: Sequence[Given]) -> bool:
    whole, alone = _fields(args), _fields(args, *others)
    target = entry.row.target
    return whole.get(target) != alone.get(target) and whole == _fields(args, entry)


def _fields(args: Any, *without: Given) -> dict[str, Any]:
    """Values of the fields with some arguments at their default."""
    changed = Namespace()
    vars(changed).update(vars(args) | {entry.row.dest: entry.row.default for entry in without})
    fields = field_values(changed, look_at_files=False)
    return {path: value for path, value in fields.items() if not isinstance(value, Unknown)}
