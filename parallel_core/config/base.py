"""How a config class is written: fields that know their flag and their range, and one way to complain."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import isfinite
from typing import Any, Union, get_args, get_origin, get_type_hints


class ConfigError(ValueError):
    """What is wrong with a configuration: every finding at once, in `.errors`."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(self.errors))

    def __reduce__(self) -> tuple[type, tuple[list[str]]]:
        """Pickled by its findings, so that a process can hand it to another."""
        return type(self), (self.errors,)


class Unjudged(Exception):
    """A rule read a value that is wrong or not known, so it has nothing to say."""


class Unknown:
    """Stands in for a value that is refused, or not known yet, while errors are gathered: a rule that uses it ends."""

    def _unjudged(self, *_: Any) -> Any:
        raise Unjudged

    __str__ = __format__ = __bool__ = __int__ = __float__ = __index__ = __iter__ = __len__ = _unjudged
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unjudged
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _unjudged
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __getitem__ = _unjudged
    __hash__ = object.__hash__


_gathered: ContextVar[list[str] | None] = ContextVar("gathered", default=None)


@contextmanager
def gather_errors() -> Iterator[list[str]]:
    """Inside this block configs do not raise: what is wrong with them is added to the list it yields."""
    errors: list[str] = []
    token = _gathered.set(errors)
    try:
        yield errors
    finally:
        _gathered.reset(token)


def complain(errors: Iterable[str]) -> None:
    """Raise `ConfigError` for a non-empty list, or hand it to the surrounding `gather_errors`."""
    errors = list(errors)
    gathered = _gathered.get()
    if gathered is not None:
        gathered.extend(errors)
    elif errors:
        raise ConfigError(errors)


def judge(rules: Iterable[Any], subject: Any) -> Iterator[str]:
    """What the rules (functions that yield sentences) say of `subject`."""
    for rule in rules:
        with suppress(Unjudged):
            yield from rule(subject)


def option(
    flag: str,
    default: Any = MISSING,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[Any, ...] = (),
) -> Any:
    """A field that is filled by `flag` and must lie in the given range.

    A field that defaults to none may be none whatever its annotation says: then it is derived from other fields, and
    has its annotated type once the config is built.
    """
    metadata = {
        "flag": flag,
        "at least": at_least,
        "above": above,
        "at most": at_most,
        "below": below,
        "choices": choices,
    }
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


_IN_RANGE = {
    "at least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def field_types(cls: type) -> dict[str, Any]:
    """Name -> annotated type of a config class's options."""
    return {entry.name: _hints(cls)[entry.name] for entry in fields(cls) if "flag" in entry.metadata}


def has_type(value: Any, hint: Any) -> bool:
    """Whether `value` may stand in a field annotated `hint` (an int may stand for a float, a bool for nothing else)."""
    if hint is Any:
        return True
    if get_origin(hint) in (types.UnionType, Union):
        return any(has_type(value, part) for part in get_args(hint))
    plain = get_origin(hint) or hint
    if plain is list and get_args(hint):
        return isinstance(value, list) and all(has_type(entry, get_args(hint)[0]) for entry in value)
    if plain is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if plain is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, plain)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)) if get_origin(hint) is None else str(hint)


def _field_error(metadata: Any, hint: Any, value: Any) -> str | None:
    flag = metadata["flag"]
    if not has_type(value, hint):
        return f"{flag} {value!r}: must be of type {_name(hint)}"
    if value is None:
        return None
    if isinstance(value, float) and not isfinite(value):
        return f"{flag} {value}: must be a finite number"
    if metadata["choices"] and value not in metadata["choices"]:
        return f"{flag} {value}: must be one of {', '.join(map(str, metadata['choices']))}"
    broken = [
        f"{text} {metadata[text]:g}"
        for text, holds in _IN_RANGE.items()
        if metadata[text] is not None and not holds(value, metadata[text])
    ]
    return f"{flag} {value}: must be {' and '.join(broken)}" if broken else None


@dataclass(kw_only=True)
class Config:
    """Base of the config sections: checks every `option` field, then derives, then applies the section's rules."""

    def __post_init__(self) -> None:
        complain(self._wrong_fields())
        with suppress(Unjudged):
            self.derive()
        complain(judge((type(self).rules,), self))

    def derive(self) -> None:
        """Fill the fields whose default follows from other fields, each by `fill`; then adjust what does not hold."""

    def fill(self, name: str, value: Callable[[], Any]) -> None:
        """Give field `name` its derived value, if the user gave none."""
        if getattr(self, name) is None:
            try:
                setattr(self, name, value())
            except Unjudged:
                setattr(self, name, Unknown())

    def rules(self) -> Iterable[str]:
        """Sentences about fields of this section that do not go together."""
        return ()

    def _wrong_fields(self) -> Iterator[str]:
        cls: Any = type(self)
        hints = _hints(cls)
        for entry in fields(self):
            value = getattr(self, entry.name)
            left_to_derive = value is None and entry.default is None
            if "flag" not in entry.metadata or isinstance(value, Unknown) or left_to_derive:
                continue
            error = _field_error(entry.metadata, hints[entry.name], value)
            if error:
                setattr(self, entry.name, Unknown())
                yield error
