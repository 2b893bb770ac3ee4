"""One row of the flag table, and the short ways to write rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

MAPPED, IGNORED, REFUSED = "mapped", "ignored", "refused"


class Flag(NamedTuple):
    """What is known of one command-line flag."""

    name: str
    """As it is typed, with its dashes."""
    type: Callable[[str], Any] | None
    """Reads one value; none: the flag is a switch and takes no value."""
    default: Any = None
    """The value when it is not given; Megatron's."""
    target: str = ""
    """The config field it fills, such as `model_config.hidden_size`."""
    help: str = ""
    """What it means; if empty, the sentence under the target field says it."""
    dest: str = ""
    """Its attribute of the argument namespace."""
    choices: tuple[Any, ...] = ()
    """The values it may have."""
    nargs: str | int | None = None
    """How many values it takes: one, `+` (one or more), `*` (any number), or this many."""
    aliases: tuple[str, ...] = ()
    """Other names of the same flag."""
    stores: Any = True
    """What a switch sets its attribute to."""
    refuses: dict[Any, str] = {}  # noqa: RUF012
    """Values that Megatron knows and we do not honour, each with the reason."""
    status: str = MAPPED
    """`mapped`: it acts. `ignored`: it cannot change the result. `refused`: an error, unless given its default."""
    reason: str = ""
    """Why it is ignored, or why it is refused and what to do instead."""
    group: str = ""
    """The heading under which it is listed."""


def _dest(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def value(
    name: str, type: Callable[[str], Any], default: Any = None, to: str = "", help: str = "", **more: Any
) -> Flag:
    """A flag with a value."""
    return Flag(name, type, default, to, help, **{"dest": _dest(name), **more})


def values(
    name: str, type: Callable[[str], Any], default: Any = None, to: str = "", help: str = "", **more: Any
) -> Flag:
    """A flag with one or more values."""
    return value(name, type, default, to, help, **{"nargs": "+", **more})


def switch(name: str, to: str = "", help: str = "", **more: Any) -> Flag:
    """A flag without a value that sets its attribute to true."""
    return Flag(name, None, False, to, help, **{"dest": _dest(name), **more})


def off(name: str, dest: str, to: str = "", help: str = "", **more: Any) -> Flag:
    """A flag without a value that sets attribute `dest`, by default true, to false."""
    return Flag(name, None, target=to, help=help, **{"default": True, "dest": dest, "stores": False, **more})


def ignored(reason: str, *flags: Flag) -> tuple[Flag, ...]:
    """Flags that cannot change the result, and why."""
    return tuple(flag._replace(status=IGNORED, reason=reason) for flag in flags)


def refused(reason: str, *flags: Flag) -> tuple[Flag, ...]:
    """Flags that ask for something we do not do, and what to do instead."""
    return tuple(flag._replace(status=REFUSED, reason=reason) for flag in flags)


def group(title: str, *flags: Flag) -> tuple[Flag, ...]:
    """Flags under one heading."""
    return tuple(flag._replace(group=title) for flag in flags)
