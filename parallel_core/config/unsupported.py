"""What the engine cannot do yet: one row a field, deleted by the change that implements it.

Fields are named by the ends of their paths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from parallel_core.config.all import AllConfig
from parallel_core.config.base import Unknown
from parallel_core.config.tree import FLAG_OF, path_of
from parallel_core.findings import Finding


class Unsupported(NamedTuple):
    """A value that the engine cannot act on yet."""

    flag: str
    target: str
    value: Any

    @property
    def finding(self) -> Finding:
        is_its_own = self.flag == FLAG_OF[self.target] or not self.flag.startswith("--")
        value, came_to = (self.value, "") if is_its_own else (None, f" = {self.value}")
        return Finding(self.flag, value, f"not implemented yet ({self.target}{came_to})", "remove it")

    def __str__(self) -> str:
        return str(self.finding)


_IMPLEMENTED: dict[str, tuple[Any, ...]] = {}
IMPLEMENTED = {path_of(name): works for name, works in _IMPLEMENTED.items()}
"""Path of a field -> the values that the engine does act on. Fields that are not listed are implemented."""


class Feature(NamedTuple):
    """What a field is a part of."""

    field: str
    """The field above, or one that the engine reads, that says whether the feature is used."""
    value: Any = None
    """Its value for which the part is read; none: any that asks for something."""


PART_OF: dict[str, Feature] = {}
"""How the name of a field, or of its section, begins -> what it only says the how of. The first that fits counts."""


def feature_of(path: str) -> Feature | None:
    """What a field is a part of; none: it is something by itself."""
    features = (feature for start, feature in PART_OF.items() if f".{start}" in f".{path}")
    return next((feature for feature in features if path_of(feature.field) != path), None)


def is_missing(path: str, missing: Collection[str]) -> bool:
    """Whether a field is among `missing`, or is a part of a feature whose field is."""
    feature = feature_of(path)
    return path in missing or (feature is not None and path_of(feature.field) in missing)


def works(path: str, value: Any) -> bool:
    """Whether the engine acts on this value of a field."""
    return path not in IMPLEMENTED or value in IMPLEMENTED[path]


def never_works(path: str) -> bool:
    """Whether the engine acts on no value of a field that asks for something: the first one listed does not."""
    feature = feature_of(path)
    if feature is None or path in IMPLEMENTED:
        return path in IMPLEMENTED and not any(IMPLEMENTED[path][1:])
    whole = path_of(feature.field)
    return never_works(whole) if feature.value is None else not works(whole, feature.value)


def unsupported(config: AllConfig) -> list[Unsupported]:
    """The values of `config` that the engine cannot act on yet; as text each names its flag, or what was given."""
    return list(_unsupported(config))


def _unsupported(config: AllConfig) -> Iterator[Unsupported]:
    values = {path: attrgetter(path)(config) for path in IMPLEMENTED}
    missing = {path for path, value in values.items() if not isinstance(value, Unknown) and not works(path, value)}
    for path in (path for path in values if path in missing):
        yield Unsupported(config.named.get(path, FLAG_OF[path]), path, values[path])
