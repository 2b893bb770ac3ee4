"""Nested dictionaries as paths with values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def leaves(
    content: Mapping[str, Any], enter: Callable[[str], bool] = lambda path: True, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """`a.b.c`, value for each entry; a dictionary that `enter` does not let into is an entry itself."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and enter(path):
            yield from leaves(value, enter, f"{path}.")
        else:
            yield path, value
