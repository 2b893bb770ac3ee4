"""Rules about what was typed: refused flags and values, flags that must come together or must not."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from mapping.flags import REFUSED, Flag
from mapping.parser import Given


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _refuses(row: Flag, part: Any) -> bool:
    return isinstance(part, str | int | float) and part in row.refuses


def refusals(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    for name, row, value in given:
        if row.status == REFUSED and value != row.default:
            yield f"{name}: {row.reason}"
        for part in _parts(value):
            if _refuses(row, part):
                yield f"{name} {part}: {row.refuses[part]}"


RULES = (refusals,)


def check_given(args: Namespace, given: Sequence[Given]) -> list[str]:
    """What the rules say of the flags that were given."""
    return [error for rule in RULES for error in rule(args, given)]


def forget_refused(args: Namespace, given: Sequence[Given]) -> None:
    """Put refused values back to their defaults, so that nothing is said of them twice."""
    for _, row, value in given:
        if row.status == REFUSED or any(_refuses(row, part) for part in _parts(value)):
            setattr(args, row.dest, row.default)
