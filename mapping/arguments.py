"""The ways to a configuration: those that people know from Megatron (`initialize_megatron`, `parse_args`, `get_args`),
and `init_configs_from_...` a YAML file, a dictionary or a namespace."""

import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from mapping.derive.values import field_values
from mapping.flags import Flag
from mapping.flags.notations import OF_OBJECTS
from mapping.given import OTHER_NAMES, ROW_OF, Given
from mapping.memory import does_not_fit
from mapping.merge import Reading, Sources, resolve
from mapping.readers import yaml_file
from mapping.readers.command_line import (
    ExtraArgs,
    Unreadable,
    convert,
    rank_of_environment,
    taken,
    world_size_of_environment,
)
from mapping.reading import read, run_findings
from parallel_core.config import AllConfig, ConfigError
from parallel_core.config.base import Unknown, complain, gather_findings, has_type
from parallel_core.config.serialise import build
from parallel_core.config.tree import OPTIONS, SECTIONS
from parallel_core.findings import Finding
from parallel_core.system.command_line import ends_quietly
from parallel_core.system.environment import is_on_cpu, is_scheduler, other_launchers


def init_configs_from_yaml(
    path: str | Path, config_classes: Iterable[type] | None = None, *, world_size: int | None = None
) -> AllConfig:
    """The configuration of a YAML file; arguments and errors as in `init_configs_from_dict`."""
    check_config_classes(config_classes)
    return _config(*yaml_file.read(path), world_size)


def init_configs_from_dict(
    content: Mapping[str, Any], config_classes: Iterable[type] | None = None, *, world_size: int | None = None
) -> AllConfig:
    """The configuration of a dictionary in one of the three layouts of YAML files, told apart by their top keys.

    The result has every section, whichever `config_classes` asks for; ValueError for a class that is no section's.
    `world_size`: processes of the job; by default what the launcher's environment says, else the dictionary, else the
    fewest that hold the model. Raises `ConfigError` with every finding; an unknown key is one, with the nearest known
    names. Keys that do nothing are printed by rank 0, but for defaults that are spelt out. Raises ValueError where a
    launcher's rank or job size is no number.
    """
    check_config_classes(config_classes)
    return _config(*yaml_file.values_of(content, "the dictionary"), world_size)


def check_config_classes(config_classes: Iterable[type] | None) -> None:
    """Raise ValueError for a class that is no section of the configuration, since nothing would fill it."""
    for asked in config_classes or ():
        if asked not in SECTIONS.values():
            known = ", ".join(sorted({kind.__name__ for path, kind in SECTIONS.items() if "." not in path}))
            raise ValueError(f"config_classes: {asked!r} is no section of the configuration; they are {known}")


def _config(given: list[Given], findings: list[Finding], world_size: int | None) -> AllConfig:
    reading = resolve(
        Sources(
            yaml=given,
            findings=findings,
            world_size=world_size or world_size_of_environment(),
            rank=rank_of_environment(),
            is_a_file=True,
        )
    )
    if reading.findings:
        raise ConfigError(reading.findings)
    reading.print_notes()
    return reading.config


GRACE_SECONDS = 3.0
"""Seconds for which other ranks wait, so that rank 0 can print the errors: a launcher kills it when one of them has
ended."""

_global_args: Namespace | None = None


class Arguments(Namespace):
    """Megatron's arguments, which know from which sources they were read and the configuration that was built then."""

    __slots__ = ("_as_built", "_reading")
    _reading: Reading
    _as_built: dict[str, Any]

    def keep(self, reading: Reading) -> None:
        """Take over the arguments of a reading, and remember the reading and their values. Attributes under other names
        than those of the flag table that are set already, such as a script's own, stay, but for `world_size`."""
        vars(self).update((name, value) for name, value in vars(reading.args).items() if _is_ours(name, self))
        self._reading = reading
        self._as_built = {name: _kept(value) for name, value in vars(self).items() if name in _NAMES}

    def __getattr__(self, name: str) -> Any:
        """The value of an argument by another parser's name for it. Raises AttributeError for an unknown name."""
        if name not in OTHER_NAMES:
            raise AttributeError(f"there is no argument {name}")
        return getattr(self, OTHER_NAMES[name])

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an argument by its own or by another parser's name for it, unless the user has an argument of that
        name."""
        is_other = name in OTHER_NAMES and name not in vars(self)
        super().__setattr__(OTHER_NAMES[name] if is_other else name, value)

    def changes(self) -> dict[str, Any]:
        """Name -> value of the arguments whose value, or its type, is another than when the configuration was built;
        None for one that was deleted, or set to None."""
        now = vars(self)
        return {name: now.get(name) for name, value in self._as_built.items() if _differs(now.get(name), value)}


_NAMES = {*ROW_OF, *OTHER_NAMES, "world_size"}
"""Names of the attributes that the configuration follows from."""


_ATOMS = {bool, int, float, str, type(None)}


def _kept(value: Any) -> Any:
    """A copy of a value, if it is one that can be changed in place; else the value."""
    return value if type(value) in _ATOMS else deepcopy(value)


def _is_ours(name: str, args: Namespace) -> bool:
    """Whether the attribute is set from a reading: it is an argument of ours, or one that the script has not set
    itself."""
    return name in _NAMES or name not in vars(args)


def _differs(left: Any, right: Any) -> bool:
    return type(left) is not type(right) or left != right


def parse_args(
    argv: Sequence[str] | None = None,
    extra_args_provider: ExtraArgs | None = None,
    world_size: int | None = None,
    args_defaults: Mapping[str, Any] | None = None,
    check_files: bool = False,
) -> Namespace:
    """The arguments of a command line, by default the process's own, with Megatron's names and defaults.

    extra_args_provider: adds the script's own flags to a parser. world_size: the number of processes, by default what
    the launcher's environment says, else 1; with --yaml-cfg in place of 1 what the file says, else the fewest that hold
    the model. args_defaults: other defaults, by attribute name. check_files: missing files are findings. Arguments that
    follow from others (sizes, the padded vocabulary, types) are filled in. Raises `ConfigError` with every finding,
    ValueError where a launcher's rank or job size is no number.
    """
    return _accepted(read(argv, extra_args_provider, world_size, args_defaults, check_files, read_vocabulary=True))


def _accepted(reading: Reading) -> Arguments:
    if reading.findings:
        raise ConfigError(reading.findings)
    args = Arguments()
    args.keep(reading)
    return args


def init_configs_from_args(
    args: Namespace, model_type: str = "model_config", config_classes: Iterable[type] | None = None
) -> AllConfig:
    """The configuration of an argument namespace.

    `model_type` must be "model_config"; the result has every section, whichever `config_classes` names: ValueError for
    another model_type, or a class that is no section's.

    For arguments of `parse_args` it is the configuration that was built when they were read; if attributes were changed
    since, it is built again from everything that was given and the changes, and flags' attributes that follow from the
    changes are filled in. A namespace of another parser, such as Megatron's, is read attribute by attribute and left as
    it is; configuration files that it names are not read, but are an error. Raises ValueError for values that are wrong
    or do not fit each other, as a rule a `ConfigError` with all findings.
    """
    if model_type != "model_config":
        raise ValueError(f"init_configs_from_args: model_type={model_type!r}: the model's section is model_config")
    check_config_classes(config_classes)
    if not isinstance(args, Arguments):
        return _of_foreign(args)
    changes = args.changes()
    if changes:
        world_size = changes.pop("world_size", None) or args._reading.sources.world_size
        reading = resolve(_with_changes(replace(args._reading.sources, world_size=world_size), changes))
        complain(reading.findings)
        args.keep(reading)
    return args._reading.config


def _with_changes(sources: Sources, changes: Mapping[str, Any]) -> Sources:
    """The sources with the values that a script gave to arguments, and a finding for each that the type or the choices
    of its flag do not take."""
    given, unread, findings = [*sources.changed], [*sources.unread], [*sources.findings]
    for name, value in changes.items():
        row = ROW_OF[OTHER_NAMES.get(name, name)]
        try:
            given.append(Given(f"args.{name}", None if value is None else taken(row, value), row))
        except Unreadable as error:
            unread.append(row)
            findings.append(Finding(f"args.{name}", error.word, error.rule, "change it"))
    return replace(sources, changed=given, unread=unread, findings=findings)


_FILES = {
    "yaml_cfg": "call init_configs_from_yaml, or pass on the namespace that parse_args() returns instead of a copy",
    "deepspeed_config": "pass on the namespace that parse_args() returns instead of a copy",
    "fsdp2_config_path": "pass on the namespace that parse_args() returns instead of a copy",
    "use_checkpoint_args": "pass on the namespace that parse_args() returns instead of a copy",
}
"""Arguments that name files whose values do not stand in a namespace -> the fix, for messages."""


def _of_foreign(args: Namespace) -> AllConfig:
    complain(
        Finding(f"--{name.replace('_', '-')}", getattr(args, name), "is read by parse_args() only", fix)
        for name, fix in _FILES.items()
        if getattr(args, name, None) not in (None, False)
    )
    read, unreadable = _read_texts(args)
    with gather_findings() as findings:
        config = build(field_values(read))
    complain([*unreadable, *findings])
    return config


def _read_texts(args: Namespace) -> tuple[Namespace, list[Finding]]:
    """A copy of another parser's namespace in which values that it left as text, or has as objects of its own (torch's
    types, Megatron's windows), are read as their flags read them, and a finding for each that cannot be read."""
    read, findings = Namespace(**vars(args)), []
    for name, value in vars(args).items():
        row = ROW_OF.get(OTHER_NAMES.get(name, name))
        if value is None or row is None or not row.target or row.type in (None, str):
            continue
        try:
            if isinstance(value, str) or _is_an_object(row, value):
                setattr(read, name, convert(row, value))
        except Unreadable as error:
            setattr(read, name, Unknown())
            findings.append(Finding(row.name, str(error.word), error.rule, "change it"))
    return read, findings


def _is_an_object(row: Flag, value: Any) -> bool:
    """Whether a value is one that its field cannot have as it is, and that the flag's reader takes or refuses."""
    return row.type in OF_OBJECTS and not has_type(value, OPTIONS[row.target].type)


def initialize_megatron(
    extra_args_provider: ExtraArgs | None = None,
    args_defaults: Mapping[str, Any] | None = None,
    argv: Sequence[str] | None = None,
    check_files: bool = True,
) -> Namespace:
    """Parse the command line for a training script, keep the result for `get_args`, and return it. Parameters are as in
    `parse_args`, but files are looked for by default.

    `--help` among the arguments prints the flags that act and ends the process. A user's mistakes, options of a
    training that are missing and a run that does not fit the memory are printed to the standard error of rank 0, and
    every process ends with exit code 2. On a CPU msrun's scheduler process, which has nothing to do there, ends with 0.
    """
    if "--help" in (sys.argv[1:] if argv is None else argv):
        from mapping.flag_reference import help_text

        with ends_quietly():
            print(help_text())
        raise SystemExit(0)
    with exit_on_mistakes():
        complain(other_launchers())
        reading = read(argv, extra_args_provider, None, args_defaults, check_files, read_vocabulary=True)
        args = _accepted(reading)
        complain(run_findings(reading))
        complain(does_not_fit(reading.config))
    if is_scheduler() and is_on_cpu(reading.config.parallel_config.device_target):
        raise SystemExit(0)
    reading.print_notes()
    set_args(args)
    return args


@contextmanager
def exit_on_mistakes() -> Iterator[None]:
    """Print a user's mistake (ValueError) inside the block to standard error and end the process with 2: on rank 0 all
    errors, without a traceback, on other ranks, after GRACE_SECONDS, one line that refers to rank 0's."""
    try:
        yield
    except ValueError as error:
        _print_errors(error.errors if isinstance(error, ConfigError) else [str(error)])
        raise SystemExit(2) from None


def _print_errors(errors: Sequence[str]) -> None:
    if _is_first():
        print(*(f"error: {error}" for error in errors), sep="\n", file=sys.stderr)
    else:
        time.sleep(GRACE_SECONDS)
        print(f"error: {len(errors)} errors in the arguments, listed by rank 0", file=sys.stderr)


def _is_first() -> bool:
    """Whether this is rank 0; True, too, if the rank is no number, which is among the errors."""
    try:
        return rank_of_environment() == 0
    except ConfigError:
        return True


def set_args(args: Namespace) -> None:
    """Let `get_args` return `args`."""
    global _global_args
    _global_args = args


set_global_args = set_args


def get_args() -> Namespace:
    """The arguments that `initialize_megatron` read, or `set_args` was given, whichever was last. Raises ValueError
    before that."""
    if _global_args is None:
        raise ValueError("get_args(): no arguments yet; call initialize_megatron() first")
    return _global_args
