"""The meaning of a file's key, as data: the fields that it fills, demands on fields, or a text with the reason why it
does nothing.

A meaning is a function of the key's value and of all entries of the file. For a wrong value it raises ValueError with
the rule that the value breaks; where it computes with the value, Python's ValueError, TypeError or OverflowError.
"""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from mapping.given import Demand
from parallel_core.findings import Finding


class Placed(NamedTuple):
    """The value of a field that a part of a YAML key's value fills, and this part's place, as `[0].collect_freq` of
    `callbacks`."""

    value: Any
    place: str
    """The part's path, behind the key's name."""


class Said(NamedTuple):
    """The value of a part of a key that does nothing, and the reason."""

    value: Any
    reason: str


class WrongPart(ValueError):
    """The rule that a part of a key breaks, with the part's value and its path behind the key's name."""

    def __init__(self, value: Any, place: str, rule: str) -> None:
        super().__init__(rule)
        self.value, self.place = value, place


Values = dict[str, Any]
"""End of a field's path -> its value. Where the value is a `Demand` or `Said`, which fill no field, the path of a part
behind the file's key stands for that end."""
Entries = Mapping[str, Any]
Meaning = Callable[[Any, Entries], Values | str]


def to(*targets: str, read: Callable[[Any], Any] = lambda value: value) -> Meaning:
    """The meaning of a key whose value, as `read` gives it, goes into these fields."""
    return lambda value, entries: dict.fromkeys(targets, read(value))


def unless(target: str) -> Meaning:
    """The meaning of a key whose value's opposite, true or false, goes into the field."""
    return lambda value, entries: {target: not value}


def words(table: Mapping[Any, Values | str | Meaning]) -> Meaning:
    """The meaning of a key whose value is one of the words of `table`, each with fields, a reason or a meaning of its
    own; any other value raises ValueError."""

    def read(value: Any, entries: Entries) -> Values | str:
        if not isinstance(value, str | int | float | bool | None) or value not in table:
            raise ValueError(f"must be one of {', '.join(map(str, table))}")
        meaning = table[value]
        return meaning(value, entries) if callable(meaning) else meaning

    return read


def equals(target: str, wanted: str, among: Collection[str]) -> Meaning:
    """The meaning of a key whose value is one of the words `among`: the field becomes true for the word `wanted`, false
    for the others of them; any other value raises ValueError."""
    return words({word: {target: word == wanted} for word in among})


def nothing(reason: str) -> Meaning:
    """The meaning of a key without which the result is the same, for this reason."""
    return lambda value, entries: reason


def each(names: str, meaning: Meaning, before: str = "") -> dict[str, Meaning]:
    """Key -> the same meaning, for several names with spaces between. before: beginning of all keys."""
    return {f"{before}{name}": meaning for name in names.split()}


def repeats(field: str) -> Meaning:
    """The meaning of a key that repeats a field's value: a demand that both are equal."""

    def read(value: Any, entries: Entries) -> Values:
        return {"": Demand(value, field, lambda has: has == value, "the model has {}", "give the model's")}

    return read


def not_done(what: str, *off: Any, reason: str = "it asks for nothing") -> Meaning:
    """The meaning of a feature that is out of scope: the values `off`, false, 0, None and an empty text, list or
    dictionary do nothing, for `reason`; others raise ValueError, with a sentence that begins with `what`."""

    def read(value: Any, entries: Entries) -> Values | str:
        if value in (*off, False, None) or value in ([], {}, ""):
            return reason
        raise ValueError(f"{what} is not done; leave it out")

    return read


def parts(table: Mapping[str, Meaning]) -> Meaning:
    """The meaning of a dictionary whose keys have the meanings in `table`; keys whose value is None are left out. It
    raises ValueError for unknown keys and for what is no dictionary, and as `part_meant`; where no key that is left
    fills or demands anything, it does nothing."""

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
    """The fields that a part of a key fills, each value `Placed`; its demands, and a `Said` with the reason for a part
    that does nothing, at the path of their part. place: the part's path behind the key's name. Raises `WrongPart`
    with `place`, or with the path of a part within it, for a value that the meaning refuses."""
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
"""Beginnings of flags; the latter two are dashes that word processors make of two hyphens."""


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """The known names that begin with this one (up to three), then those that are spelt much alike (up to three), none
    twice. A name with any dashes before it counts as one with two hyphens."""
    name = f"--{name.lstrip(''.join(DASHES))}" if name.startswith(DASHES) else name
    longer = [full for full in known if full.startswith(name)]
    return [*dict.fromkeys((*longer[:3], *difflib.get_close_matches(name, known, n=3, cutoff=0.75)))]


_NO_FLAG, _NO_KEY = "there is no such flag", "there is no such key"


def unknown(name: str, known: Sequence[str], source: str = "") -> Finding:
    """The finding that there is no such flag or, if the name has no dash before it, no such key, with the nearest known
    names, if there are any. source: the file that has it; "" for the command line."""
    near = nearest(name, known)
    rule = _NO_FLAG if name.startswith(DASHES) else _NO_KEY
    return Finding(name, None, rule, f"did you mean {', '.join(near)}?" if near else "remove it", source)


def is_unknown(finding: Finding) -> bool:
    """Whether the finding is that there is no such flag or key."""
    return finding.rule in (_NO_FLAG, _NO_KEY)
