"""The outcome for a value that was given: by a flag, an attribute, a file's key or a checkpoint."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mapping.flags import IGNORED, MAPPED, REFUSED
from mapping.given import Given
from parallel_core.config import AllConfig
from parallel_core.config.base import Unknown
from parallel_core.config.tree import PUBLIC, path_of


@dataclass
class Outcome:
    """The outcome for one flag or key: status (mapped, ignored, refused), the option that it fills ("": none) with that
    option's final value, else the value as given, and the reason ("": none)."""

    flag: str
    value: Any
    status: str
    target: str
    reason: str


def outcome_of(given: Given, config: AllConfig) -> Outcome:
    """The outcome of a given value in the config that was built of everything; a final value that is not known is
    None."""
    row = given.row
    if row.status == REFUSED and row.asks_for_nothing(given.value):
        return Outcome(given.name, given.value, IGNORED, "", "its default: it asks for nothing")
    if given.demand is not None:
        return Outcome(given.name, given.value, MAPPED, "", f"compared with {PUBLIC[path_of(given.demand.field)]}")
    if not given.target or given.status == IGNORED:
        return Outcome(given.name, given.value, given.status, "", given.reason or row.reason)
    value = attrgetter(given.target)(config)
    value = None if isinstance(value, Unknown) else value
    return Outcome(given.name, value, given.status, PUBLIC[given.target], given.replaced)
