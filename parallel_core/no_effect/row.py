"""One row: a condition under which options do nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from parallel_core.config.all import AllConfig
from parallel_core.config.tree import FLAG_OF, path_of


class Idle(NamedTuple):
    """Options that do nothing under a condition."""

    options: str
    """The ends of their paths, with spaces between."""
    is_idle: Callable[[AllConfig], object]
    reason: str
    of_lengths: bool = False
    """Whether that is so by the length of a run's sequences: in another run of the model it may not be."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the options."""
        return _paths(self.options)


@cache
def _paths(options: str) -> tuple[str, ...]:
    return tuple(path_of(name) for name in options.split())


def needs(switch: str, options: str) -> Idle:
    """Options that do nothing unless another, the end of whose path is `switch`, asks for something."""
    path = path_of(switch)
    value = attrgetter(path)
    return Idle(options, lambda config: not value(config), f"needs {FLAG_OF[path]}")


def below(section: type, *but: str) -> str:
    """The options of a section, without some, as a row names them."""
    return " ".join(name for name in section.__dataclass_fields__ if name not in but)  # type: ignore[attr-defined]
