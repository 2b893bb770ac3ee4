"""A record of opened files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_listening: list[list[Path]] = []


@contextmanager
def opened() -> Iterator[list[Path]]:
    """Within the context every path that this process opens is added to the list that it yields."""
    _listen()
    found: list[Path] = []
    _listening.append(found)
    try:
        yield found
    finally:
        _listening.remove(found)


@cache
def _listen() -> None:
    """Install the audit hook that notes opened files, once in a process, as Python cannot remove one."""

    def hook(event: str, arguments: tuple) -> None:
        if event == "open" and _listening and isinstance(arguments[0], str | Path):
            for found in _listening:
                found.append(Path(arguments[0]).absolute())

    sys.addaudithook(hook)
