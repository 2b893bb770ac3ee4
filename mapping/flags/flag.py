"""One row of the flag table, and the short ways to write rows."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from parallel_core.config.tree import path_of

MAPPED, IGNORED, REFUSED = "mapped", "ignored", "refused"


class Flag(NamedTuple):
    """One command-line flag: names, type, default, and the option that it fills."""

    name: str
    """The flag as it is typed, with its dashes."""
    type: Callable[[str], Any] | None
    """Reads one value; none: the flag is a switch and takes no value."""
    default: Any = None
    """The value when it is not given; Megatron's."""
    target: str = ""
    """The path of the config field that it fills, such as `model_config.hidden_size`; of an ignored one that nobody
    reads."""
    help: str = ""
    """Its meaning; if empty, the sentence under the target field says it."""
    dest: str = ""
    """Its attribute of the argument namespace."""
    choices: tuple[Any, ...] = ()
    """The values it may have."""
    nargs: str | int | None = None
    """Number of values: one, `+` (one or more), `*` (any number), this many, `1+` (one, or a list of more)."""
    aliases: tuple[str, ...] = ()
    """Other names of the same flag."""
    stores: Any = True
    """Value to which a switch sets its attribute."""
    refuses: dict[Any, str] = {}  # noqa: RUF012
    """Values that Megatron knows and we do not honour, each with the reason."""
    stands_for: dict[Any, str] = {}  # noqa: RUF012
    """Values for which another is taken, each with the sentence that says so; it is printed when a run starts."""
    other_defaults: tuple[Any, ...] = ()
    """Values of other parsers when it is not given."""
    status: str = MAPPED
    """`mapped`: it acts. `ignored`: it does nothing, for a reason. `refused`: an error, unless given its default."""
    reason: str = ""
    """Why it is ignored, or why it is refused and what to do instead."""
    group: str = ""
    """The heading under which it is listed."""
    idle: tuple[Callable[[Any], object], str] | None = None
    """For one of several flags of a field: the other arguments beside which the field does not follow from it, and
    why."""
    completes: tuple[str, ...] = ()
    """Flags that fill the same field, but of which it says something else: neither replaces the other."""
    refines: bool = False
    """Whether it adds to another flag of its field, and so contradicts none."""

    def why_idle(self, args: Any) -> str:
        """Why it does nothing beside the other arguments; empty if it acts."""
        return f"no effect: {self.idle[1]}" if self.idle and self.idle[0](args) else ""

    def asks_for_nothing(self, value: Any) -> bool:
        """Whether a value is what holds without it, in any of the parsers; text may stand for a truth value."""
        defaults = (self.default, *self.other_defaults)
        return value in defaults or value in [str(one) for one in defaults if isinstance(one, bool)]


def attribute(name: str) -> str:
    """The attribute that a flag of this name fills."""
    return name.removeprefix("--").replace("-", "_")


def switched_off(name: str) -> str:
    """The attribute that `--no-x` and `--disable-x` set to false."""
    return attribute(re.sub(r"^--(no|disable)-", "--", name))


_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}

_VALUE = re.compile(r"(?P<type>int|float|str)(?P<nargs>[+*]|x\d+)?(\{(?P<choices>.*?)\})?(:(?P<default>.*))?")


def usage(text: str) -> Iterator[Flag]:
    """Rows as a usage line says them, with spaces between.

    `--x` is a switch, `--x=int` takes a value, `--x=int:3` has a default, `--x=int:3;4` has 4 elsewhere,
    `--x=str{a,b}` choices, `--x=str+` one or more values (`*` any number, `x3` three). `--no-x=off` sets attribute x,
    by default true, to false. `--x|--y` has two names, `--x>y` fills attribute y.
    """
    for word in text.split():
        head, _, kind = word.partition("=")
        names, _, dest = head.partition(">")
        name, *aliases = names.split("|")
        more: dict[str, Any] = {"aliases": tuple(aliases)}
        if not kind:
            yield Flag(name, None, False, dest=dest or attribute(name), **more)
        elif kind.startswith("off"):
            default = _literal(kind.removeprefix("off").removeprefix(":") or "True")
            yield Flag(name, None, default, dest=dest or switched_off(name), stores=False, **more)
        else:
            found = _VALUE.fullmatch(kind)
            assert found, word
            type, count = _KINDS[found["type"]], found["nargs"]
            more["nargs"] = int(count[1:]) if count and count[0] == "x" else count
            more["choices"] = tuple(map(type, found["choices"].split(","))) if found["choices"] else ()
            default, *others = (None,) if found["default"] is None else map(_literal, found["default"].split(";"))
            yield Flag(name, type, default, dest=dest or attribute(name), other_defaults=tuple(others), **more)


def value(line: str, field: str = "", help: str = "", **more: Any) -> Flag:
    """The row of one usage line; of a flag that acts with the end of the field's path that is derived from it."""
    (flag,) = usage(line)
    return flag._replace(target=path_of(field) if field else "", help=help, **more)


def _literal(text: str) -> Any:
    """A number, a list, a quoted text; any other text as it stands."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _rows(flags: Iterable[str | Flag], **more: Any) -> tuple[Flag, ...]:
    listed = (usage(entry) if isinstance(entry, str) else (entry,) for entry in flags)
    return tuple(flag._replace(**more) for entries in listed for flag in entries)


def ignored(reason: str, *flags: str | Flag) -> tuple[Flag, ...]:
    """Flags that do nothing, and why: nearly always that they cannot change the result."""
    return _rows(flags, status=IGNORED, reason=reason)


def refused(reason: str, *flags: str | Flag) -> tuple[Flag, ...]:
    """Flags that ask for something we do not do, and what to do instead."""
    return _rows(flags, status=REFUSED, reason=reason)


def group(title: str, *tables: Iterable[Flag]) -> tuple[Flag, ...]:
    """Flags under one heading."""
    return tuple(flag._replace(group=title) for table in tables for flag in table)
