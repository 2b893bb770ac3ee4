"""The meaning of a file's key, as data: the fields that it fills, or in a sentence why it does nothing.

A meaning is a function of the key's value and of all entries of the file. It raises ValueError, with the rule that the
value breaks.
"""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from mapping.given import Demand
from parallel_core.findings import Finding


class Placed(NamedTuple):
    """A value of a part of a key: `callbacks[0].collect_freq`."""

    value: Any
    place: str
    """The path behind the key's name."""


class Said(NamedTuple):
    """The value of a part of a key that does nothing, and why."""

    value: Any
    reason: str


class WrongPart(ValueError):
    """The rule that a part of a key breaks, with its value and what the key's name is followed by."""

    def __init__(self, value: Any, place: str, rule: str) -> None:
        super().__init__(rule)
        self.value, self.place = value, place


Values = dict[str, Any]
"""Fields by the ends of their paths; demands and reasons by what a key's name is followed by where they stand."""
Entries = Mapping[str, Any]
Meaning = Callable[[Any, Entries], Values | str]


def to(*targets: str, read: Callable[[Any], Any] = lambda value: value) -> Meaning:
    """The value goes into these fields, as `read` gives it."""
    return lambda value, entries: dict.fromkeys(targets, read(value))


def unless(target: str) -> Meaning:
    """The field is the value's opposite."""
    return lambda value, entries: {target: not value}


def words(table: Mapping[Any, Values | str | Meaning]) -> Meaning:
    """Each word has its own meaning; others are refused."""

    def read(value: Any, entries: Entries) -> Values | str:
        if not isinstance(value, str | int | float | bool | None) or value not in table:
            raise ValueError(f"must be one of {', '.join(map(str, table))}")
        meaning = table[value]
        return meaning(value, entries) if callable(meaning) else meaning

    return read


def equals(target: str, wanted: str, among: Collection[str]) -> Meaning:
    """The field says which of two or more words the value is: whether it is `wanted`."""
    return words({word: {target: word == wanted} for word in among})


def nothing(reason: str) -> Meaning:
    """The result is the same without the key."""
    return lambda value, entries: reason


def each(names: str, meaning: Meaning, before: str = "") -> dict[str, Meaning]:
    """The same meaning for several keys, with spaces between; before: how all begin."""
    return {f"{before}{name}": meaning for name in names.split()}


def repeats(field: str) -> Meaning:
    """The value must be the field's."""

    def read(value: Any, entries: Entries) -> Values:
        return {"": Demand(value, field, lambda has: has == value, "the model has {}", "give the model's")}

    return read


def not_done(what: str, *off: Any, reason: str = "it asks for nothing") -> Meaning:
    """A feature that is out of scope; the values `off`, and an empty one, ask for nothing."""

    def read(value: Any, entries: Entries) -> Values | str:
        if value in (*off, False, None) or value in ([], {}, ""):
            return reason
        raise ValueError(f"{what} is not done; leave it out")

    return read


def parts(table: Mapping[str, Meaning]) -> Meaning:
    """A dictionary whose keys have meanings of their own."""

    def read(value: Any, entries: Entries) -> Values | str:
        if not isinstance(value, Mapping):
            raise ValueError(f"must have the keys {', '.join(table)}")
        found: Values = {}
        for key, part in value.items():
            if key not in table:
                raise ValueError(f"knows {', '.join(table)}, not {key}")
            found |= {} if part is None else part_meant(f".{key}", table[key], part, entries)
        return found or "its keys ask for nothing"

    return read


def part_meant(place: str, meaning: Meaning, value: Any, entries: Entries) -> Values:
    """The value of a part of a key; an error gets the part's place."""
    try:
        found = meaning(value, entries)
    except WrongPart as error:
        raise WrongPart(error.value, f"{place}{error.place}", str(error)) from None
    except ValueError as error:
        raise WrongPart(value, place, str(error)) from None
    if isinstance(found, str):
        return {place: Said(value, found)}
    return dict(_placed(place, *entry) for entry in found.items())


def _placed(place: str, name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, Demand | Said):
        return f"{place}{name}", value
    inner = value if isinstance(value, Placed) else Placed(value, "")
    return name, Placed(inner.value, f"{place}{inner.place}")


DASHES = ("-", "\N{EN DASH}", "\N{EM DASH}")
"""Beginnings of flags; the latter two are what word processors make of two hyphens."""


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Known names that begin with this one, then those that are written much alike."""
    name = f"--{name.lstrip(''.join(DASHES))}" if name.startswith(DASHES) else name
    longer = [full for full in known if full.startswith(name)]
    return [*dict.fromkeys((*longer[:3], *difflib.get_close_matches(name, known, n=3, cutoff=0.75)))]


def unknown(name: str, known: Sequence[str], source: str = "") -> Finding:
    """The finding that there is no such name, with the nearest that there are."""
    near = nearest(name, known)
    rule = "there is no such flag" if name.startswith(DASHES) else "there is no such key"
    return Finding(name, None, rule, f"did you mean {', '.join(near)}?" if near else "remove it", source)
