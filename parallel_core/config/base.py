"""The base of config classes: fields that know their flag and their range, and the way in which findings are raised."""

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from operator import attrgetter
from sys import float_info
from typing import Any, Union, get_args, get_origin, get_type_hints

from parallel_core.findings import ConfigError, Finding


class Unjudged(Exception):
    """The exception that ends a rule, or the derivation of a value, which reads a value that is wrong or not known
    (`Unknown`); `judge` and `Config.fill` catch it."""


class Unknown:
    """A value that is refused, or not known yet, while errors are gathered: to compare it, compute with it by
    + - * / // %, convert it by bool, int, float or str, index it or go through it raises `Unjudged`."""

    def _unjudged(self, *_: Any) -> Any:
        raise Unjudged

    __str__ = __format__ = __bool__ = __int__ = __float__ = __index__ = __iter__ = __len__ = _unjudged
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unjudged
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _unjudged
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __getitem__ = _unjudged
    __hash__ = object.__hash__


_gathered: ContextVar[list[Finding] | None] = ContextVar("gathered", default=None)


@contextmanager
def gather_findings() -> Iterator[list[Finding]]:
    """Gather findings: inside this block configs raise no `ConfigError`, but add what is wrong with them to the list
    that it yields."""
    findings: list[Finding] = []
    token = _gathered.set(findings)
    try:
        yield findings
    finally:
        _gathered.reset(token)


def complain(findings: Iterable[Finding]) -> None:
    """Hand findings to the surrounding `gather_findings`; without one raise `ConfigError` if there are any."""
    findings = list(findings)
    gathered = _gathered.get()
    if gathered is not None:
        gathered.extend(findings)
    elif findings:
        raise ConfigError(findings)


def judge(rules: Iterable[Any], subject: Any) -> Iterator[Finding]:
    """Findings of the rules (functions that yield findings) about `subject`; a rule goes no further where it reads a
    value that is wrong or not known, and a finding about such a value is left out."""
    for rule in rules:
        try:
            yield from (finding for finding in rule(subject) if not isinstance(finding.value, Unknown))
        except Unjudged:
            continue


def option(
    flag: str,
    default: Any = MISSING,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[Any, ...] = (),
    missing: str = "add it",
    of: str = "network",
) -> Any:
    """A field that is filled by `flag` and must lie in the given range and be one of `choices`, if there are any.
    missing: the fix that an error names where a required field is not given.

    of: in the sections of the model, the part that the option describes: "network", the function that the model
    computes; "shapes", a part of that which names and shapes of its parameters tell as well; "run", its training,
    rounding or layout.

    A field that defaults to None may be None whatever its annotation says. If the annotation has no None, the field is
    derived from other fields, or demanded by a rule where it is needed.
    """
    metadata = {
        "flag": flag,
        "at least": at_least,
        "above": above,
        "at most": at_most,
        "below": below,
        "choices": choices,
        "missing": missing,
        "of": of,
    }
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def concern(kind: "type[Config]") -> Any:
    """A field that holds a config of one concern. Its options are attributes and arguments of the outer config, too:
    `training_config.bf16` is `training_config.precision.bf16` (see `section`)."""
    return field(default_factory=kind, metadata={"concern": kind})


def sibling(shows: tuple[str, ...] = ()) -> Any:
    """A field that `AllConfig` sets to another section, the one with the field's name. shows: names of that section's
    options that are attributes here, too."""
    return field(default=None, repr=False, compare=False, metadata={"sibling": True, "shows": shows})


_IN_RANGE: dict[str, Callable[[float, float], bool]] = {
    "at least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
}


@cache
def types_of(cls: Any) -> dict[str, Any]:
    """Name -> annotated type of a config class's fields."""
    return get_type_hints(cls)


@cache
def _options_of(cls: Any) -> tuple[Field[Any], ...]:
    return tuple(entry for entry in fields(cls) if "flag" in entry.metadata)


def has_type(value: Any, hint: Any) -> bool:
    """Whether `value` may stand in a field with the annotation `hint`. An int may stand for a float, but a bool for no
    number; of what is in a container only the entries of list[X] and tuple[X, ...] are checked."""
    if hint is Any:
        return True
    if get_origin(hint) in (types.UnionType, Union):
        return any(has_type(value, part) for part in get_args(hint))
    plain = get_origin(hint) or hint
    if (plain is list and get_args(hint)) or (plain is tuple and get_args(hint)[1:] == (...,)):
        return isinstance(value, plain) and all(has_type(entry, get_args(hint)[0]) for entry in value)
    if plain is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if plain is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, plain)


def type_name(hint: Any) -> str:
    """The name of a type as messages write it."""
    return getattr(hint, "__name__", str(hint)) if get_origin(hint) is None else str(hint)


def _broken_rule(metadata: Any, hint: Any, value: Any) -> str | None:
    """The rule that the value of one field breaks, as text: its type, its choices, its range; None: it breaks none."""
    if not has_type(value, hint):
        return f"must be of type {type_name(hint)}"
    if value is None:
        return None
    if isinstance(value, int | float) and not abs(value) <= float_info.max:
        return "must be a finite number"
    if metadata["choices"] and value not in metadata["choices"]:
        return f"must be one of {', '.join(map(str, metadata['choices']))}"
    broken = [
        f"{text} {metadata[text]:g}"
        for text, holds in _IN_RANGE.items()
        if metadata[text] is not None and not holds(value, metadata[text])
    ]
    return f"must be {' and '.join(broken)}" if broken else None


@dataclass(kw_only=True)
class Config:
    """Base of the config sections: checks every `option` field, then derives, then applies the section's rules. Raises
    `ConfigError` after the first of these checks that finds something, unless `gather_findings` takes the findings."""

    def __post_init__(self) -> None:
        complain(self._wrong_fields())
        with suppress(Unjudged):
            self.derive()
        complain(judge((type(self).rules,), self))

    def derive(self) -> None:
        """In a subclass: set fields that follow from others. Here: nothing."""

    def fill(self, name: str, value: Callable[[], Any]) -> None:
        """Give field `name`, if it is None, the value that `value()` returns, or `Unknown` if that reads a value that
        is wrong or not known."""
        if getattr(self, name) is None:
            try:
                setattr(self, name, value())
            except Unjudged:
                setattr(self, name, Unknown())

    def rules(self) -> Iterable[Finding]:
        """In a subclass: findings of the section's own rules. Here: none."""
        return ()

    def breaks(self, name: str, rule: str, fix: str = "change one of them", value: Any = None) -> Finding:
        """The finding that option `name`, under its flag, breaks a rule. value: the value as the message shows it, if
        it is not the option's own; a truth value is not shown."""
        held = getattr(self, name) if value is None else value
        flag = type(self).__dataclass_fields__[name].metadata["flag"]
        return Finding(flag, None if isinstance(held, bool) else held, rule, fix)

    def needs(self, name: str, what: str, fix: str = "add it") -> Finding:
        """The finding that option `name` needs something else: `what`, usually another flag."""
        return self.breaks(name, f"needs {what}", fix)

    def clashes(self, name: str, other: str, fix: str = "leave one of them out") -> Finding:
        """The finding that option `name` does not go with another flag."""
        return self.breaks(name, f"does not go with {other}", fix)

    def to_dict(self) -> dict[str, Any]:
        """The section's options by the names under which users know them. Options of an inner config that is a
        `concern`, such as precision's, stand among the section's own, as do those that another section lends it
        (`sibling`); any other config inside is a dictionary of its own. A value that is refused or not known yet is
        None. A section that is lent options must be part of an `AllConfig`."""
        plain: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if "concern" in entry.metadata:
                plain |= value.to_dict()
            elif "sibling" in entry.metadata:
                plain |= {name: _plain(getattr(value, name)) for name in entry.metadata["shows"]}
            elif entry.repr:
                plain[entry.name] = _plain(value)
        return plain

    def _wrong_fields(self) -> Iterator[Finding]:
        cls: Any = type(self)
        hints = types_of(cls)
        for entry in _options_of(cls):
            value = getattr(self, entry.name)
            if value is entry.default or isinstance(value, Unknown):
                continue
            rule = _broken_rule(entry.metadata, hints[entry.name], value)
            if rule:
                setattr(self, entry.name, Unknown())
                shown = value if has_type(value, hints[entry.name]) else repr(value)
                yield Finding(entry.metadata["flag"], shown, rule, "change it")


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    return None if isinstance(value, Unknown) else value


def section(cls: type[Config]) -> Any:
    """Turn a config class with `concern` or `sibling` fields into a dataclass that also has its concerns' options,
    as attributes and arguments, and the options that its siblings lend it (`shows`), as attributes.

    The project's own code names the concern (`training_config.precision.bf16`), which is what type checkers see; users'
    scripts and files may leave it out (`training_config.bf16`).
    """
    made: Any = dataclass(kw_only=True)(cls)
    kinds = {entry.name: entry.metadata["concern"] for entry in fields(made) if "concern" in entry.metadata}
    owner = {option.name: name for name, kind in kinds.items() for option in fields(kind)}
    shown = {name: entry.name for entry in fields(made) for name in entry.metadata.get("shows", ())}
    for name, place in {**owner, **shown}.items():
        setattr(made, name, _forwarded(name, place))
    plain = made.__init__

    def __init__(self: Config, **given: Any) -> None:
        flat = {name: given.pop(name) for name in owner.keys() & given.keys()}
        for place in {owner[name] for name in flat}:
            own = {name: value for name, value in flat.items() if owner[name] == place}
            if place in given:
                name = next(iter(own))
                raise TypeError(f"{made.__name__}: {name} is an option of {place}, which is given; set it there")
            given[place] = kinds[place](**own)
        plain(self, **given)

    made.__init__ = __init__
    return made


def _forwarded(name: str, place: str) -> property:
    """A property for an option that is a field of the inner config in the field `place`."""
    return property(attrgetter(f"{place}.{name}"), lambda config, value: setattr(getattr(config, place), name, value))
