"""Functions that make rows of flags from options of the config: type, default and choices are the option's, unless a
change says otherwise."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from mapping.flags.flag import IGNORED, Flag, attribute, switched_off
from parallel_core.config.tree import OPTIONS, SECTIONS, Option, path_of
from parallel_core.no_effect.row import ALWAYS

WITHOUT_MUP = (lambda args: not args.use_mup, "needs --use-mup")
"""The test for arguments with which mu-P's flags do nothing, and the reason (`Flag.idle`)."""

Change = Mapping[str, Any]
"""Field of a flag's row -> value, where the row differs from the one that its option makes; also: further choices."""


class Acting(NamedTuple):
    """Additions to the flags that options make: changed fields of their rows by flag (`own`), and further flags that
    fill options (`others`)."""

    own: Mapping[str, Change]
    """Flag of an option -> differences of its row, such as another default or aliases."""
    others: tuple[Flag, ...]
    """Further flags that fill options."""


def row(option: Option, name: str) -> Flag:
    """The row of a flag `name` for an option: for a bool a switch, off by default (one that sets false, if the option's
    default is true); else one value, or one or more for a list, with the option's type and default. Choices are the
    option's. The row is ignored if the option never does anything (`ALWAYS`)."""
    kind, base = _plain(option.type), {"target": option.path, "choices": option.field.metadata["choices"]}
    if option.path in ALWAYS:
        base |= {"status": IGNORED, "reason": ALWAYS[option.path]}
    if kind is bool and option.default is True:
        return Flag(name, None, True, dest=switched_off(name), stores=False, **base)
    if kind is bool:
        return Flag(name, None, False, dest=attribute(name), **base)
    if get_origin(kind) is list:
        return Flag(name, get_args(kind)[0], option.default, dest=attribute(name), nargs="+", **base)
    return Flag(name, kind, option.default, dest=attribute(name), **base)


def _plain(kind: Any) -> Any:
    """The type of a value that is given: of `T | None` the T."""
    if get_origin(kind) in (UnionType, Union):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def changed(flag: Flag, change: Change) -> Flag:
    """A row with the fields of `change` in place of its own. If `change` has no choices, the row's are extended by the
    values under the keys `also` and `refuses` of `change`."""
    fields = {name: value for name, value in change.items() if name != "also"}
    if "choices" not in fields:
        fields["choices"] = (*flag.choices, *change.get("also", ()), *change.get("refuses", ()))
    return flag._replace(**fields)


def same(name: str, field: str, help: str = "", **change: Any) -> Flag:
    """The row of a further flag for `field` (the end of its path), made of the field's option as by `row`, with the
    attribute of its own name unless `change` has another. change: as in `changed`."""
    return changed(row(OPTIONS[path_of(field)], name), {"help": help, **change})


def as_switch(name: str, help: str, **change: Any) -> dict[str, Change]:
    """{name: change} for a flag that is a switch: its argument has the flag's name, False by default and True where it
    is given, and the option is derived from that."""
    return {name: {"dest": attribute(name), "default": False, "stores": True, "help": help, **change}}


def read_by(type: Callable[[str], Any], **change: Any) -> Change:
    """The change for a flag that takes one value, without choices, whose text is read by the function `type`."""
    return {"type": type, "nargs": None, "choices": (), **change}


def refusing(reason: str, *refused: str, **change: Any) -> Change:
    """The change for a flag with further values that are refused, for `reason`."""
    return {"refuses": dict.fromkeys(refused, reason), **change}


def first_sentence(text: str) -> str:
    """A text, in one line, up to its first full stop before a space or at the end, without that stop; one behind "et
    al" does not count."""
    return re.split(r"(?<!et al)\.(?=\s|$)", " ".join(text.split()), maxsplit=1)[0]


def tables(acting: Iterable[Acting], without_flag: Iterable[str]) -> Iterator[tuple[Flag, ...]]:
    """The rows of each section, in the order of the config: first those of its options' own flags, then further flags.
    without_flag: flags of options that get no row. Raises AssertionError at the end if `own` of one of `acting` names a
    flag that is no option's, or that is in `without_flag`."""
    parts = list(acting)
    own = {name: change for part in parts for name, change in part.own.items()}
    others = [flag for part in parts for flag in part.others]
    done = set(without_flag)
    for section, cls in SECTIONS.items():
        rows = []
        for option in OPTIONS.values():
            if option.path.rpartition(".")[0] == section and option.flag not in done:
                rows.append(changed(row(option, option.flag), own.pop(option.flag, {})))
                done.add(option.flag)
        rows += [flag for flag in others if flag.target.rpartition(".")[0] == section]
        title = f"{section}: {first_sentence(cls.__doc__ or '')}"
        yield tuple(flag._replace(group=title) for flag in rows)
    assert not own, own
