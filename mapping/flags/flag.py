"""A row of the flag table, and short ways to write rows."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from parallel_core.config.tree import path_of

MAPPED, IGNORED, REFUSED = "mapped", "ignored", "refused"


class Flag(NamedTuple):
    """One command-line flag: names, type (None: a switch), default, choices, and the config field that it fills
    (`target`). dest: its attribute; stores: the value that a switch sets; refuses, stands_for: values that are refused,
    and for which another is taken; idle: when and why it does nothing; completes: flags of its field beside which it
    may stand; refines: whether it adds to another flag of its field."""

    name: str
    """The flag as it is typed, with its dashes."""
    type: Callable[[str], Any] | None
    """The reader of one value's text; None: the flag is a switch and takes no value."""
    default: Any = None
    """The value when it is not given."""
    target: str = ""
    """Path of the config field that it fills, alone or with others, such as `model_config.hidden_size`; "": none."""
    help: str = ""
    """The meaning; if empty, the sentence under the target field gives it."""
    dest: str = ""
    """The attribute of the argument namespace that it fills."""
    choices: tuple[Any, ...] = ()
    """The values that its reader may give, refused ones among them; empty: any."""
    nargs: str | int | None = None
    """The number of values: None for one, `+` (one or more), `*` (any number), a number, `1+` (one, or a list of
    more)."""
    aliases: tuple[str, ...] = ()
    """Other names of the same flag."""
    stores: Any = True
    """The value to which a switch sets its attribute."""
    refuses: dict[Any, str] = {}  # noqa: RUF012
    """Value that is refused here -> the reason."""
    stands_for: dict[Any, str] = {}  # noqa: RUF012
    """Value that another stands for here -> the sentence that says so, for the user."""
    other_defaults: tuple[Any, ...] = ()
    """Values that other parsers have when it is not given."""
    status: str = MAPPED
    """`mapped`: it acts. `ignored`: it does nothing, for a reason. `refused`: an error, unless its value is a
    default (`asks_for_nothing`)."""
    reason: str = ""
    """The reason why it is ignored, or why it is refused and what to do instead."""
    group: str = ""
    """The heading of the reference page and of --help under which it is listed."""
    idle: tuple[Callable[[Any], object], str] | None = None
    """(Test of the arguments, reason): where the test holds, no field follows from this flag, for this reason; None:
    there is no such test."""
    completes: tuple[str, ...] = ()
    """Names of flags that fill the same field in part, so that neither replaces the other."""
    refines: bool = False
    """Whether it adds to another flag of its field, and so contradicts none."""

    def why_idle(self, args: Any) -> str:
        """The reason of `idle`, for a message, if its test holds for the arguments `args`; "" if it does not, or there
        is none."""
        return f"no effect: {self.idle[1]}" if self.idle and self.idle[0](args) else ""

    def asks_for_nothing(self, value: Any) -> bool:
        """Whether a value asks for nothing: it is the flag's default, in this parser or another; "True" and "False" as
        text are taken for the truth values."""
        defaults = (self.default, *self.other_defaults)
        return value in defaults or value in [str(one) for one in defaults if isinstance(one, bool)]


def attribute(name: str) -> str:
    """The attribute of the argument namespace that a flag of this name fills by default."""
    return name.removeprefix("--").replace("-", "_")


def switched_off(name: str) -> str:
    """The attribute that the switch `--no-x` or `--disable-x` of this name sets to false: x."""
    return attribute(re.sub(r"^--(no|disable)-", "--", name))


_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}

_VALUE = re.compile(r"(?P<type>int|float|str)(?P<nargs>[+*]|x\d+)?(\{(?P<choices>.*?)\})?(:(?P<default>.*))?")


def usage(text: str) -> Iterator[Flag]:
    """The rows of flags in a text of usage words, with spaces between.

    `--x` is a switch, `--x=int` takes a value, `--x=int:3` has a default; `--x=int:3;4` also says that 4 is
    another program's default, which asks for nothing either; `--x=str{a,b}` has choices, `--x=str+` one or more values
    (`str*` any number, `strx3` three). `--no-x=off` sets attribute x, by default true (`off:False`: false), to false.
    `--x|--y` has two names, `--x>y` fills attribute y.
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
    """The row of one usage word `line` (see `usage`). field: the end of the path of the config field that it fills, ""
    for none. help: its meaning; "": the sentence under that field. more: further fields of the row."""
    (flag,) = usage(line)
    return flag._replace(target=path_of(field) if field else "", help=help, **more)


def _literal(text: str) -> Any:
    """The value of a text: a number, a list, a quoted text; any other text as it stands."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _rows(flags: Iterable[str | Flag], **more: Any) -> tuple[Flag, ...]:
    listed = (usage(entry) if isinstance(entry, str) else (entry,) for entry in flags)
    return tuple(flag._replace(**more) for entries in listed for flag in entries)


def ignored(reason: str, *flags: str | Flag) -> tuple[Flag, ...]:
    """The rows of flags (usage texts or rows), with the status that they do nothing, for `reason`."""
    return _rows(flags, status=IGNORED, reason=reason)


def refused(reason: str, *flags: str | Flag) -> tuple[Flag, ...]:
    """The rows of flags (usage texts or rows), with the status that they are refused, for `reason`."""
    return _rows(flags, status=REFUSED, reason=reason)


def group(title: str, *tables: Iterable[Flag]) -> tuple[Flag, ...]:
    """The rows of all tables, each with the heading `title`."""
    return tuple(flag._replace(group=title) for table in tables for flag in table)
