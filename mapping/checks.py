"""Rules about what was typed: refused flags and values, flags that must come together or must not."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence

from mapping.flags import REFUSED
from mapping.parser import Given


def refusals(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    for name, row, value in given:
        if row.status == REFUSED and value != row.default:
            yield f"{name}: {row.reason}"
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, list | dict) and part in row.refuses:
                yield f"{name} {part}: {row.refuses[part]}"


RULES = (refusals,)


def check_given(args: Namespace, given: Sequence[Given]) -> list[str]:
    """What the rules say of the flags that were given."""
    return [error for rule in RULES for error in rule(args, given)]
