"""The ways in that people know from Megatron: `initialize_megatron`, `parse_args`, `get_args`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

from mapping import from_deepspeed, from_yaml
from mapping.checks import check_given, forget_refused
from mapping.derived import DERIVED
from mapping.files import missing_files
from mapping.flags import IGNORED, MAPPED, ROWS
from mapping.from_args import FLAG_OF, build_with_errors, field_values
from mapping.from_deepspeed import Auto
from mapping.parser import ExtraArgs, Given, rank_of_environment, read_command_line, world_size_of_environment
from parallel_core.config import AllConfig, ConfigError
from parallel_core.config.base import Unknown, complain
from parallel_core.config.unsupported import unsupported

_global_args: Namespace | None = None


class Reading(NamedTuple):
    """Everything that a command line says, right or wrong."""

    args: Namespace
    given: list[Given]
    config: AllConfig
    errors: list[str]
    notes: list[str]


def read(
    argv: Sequence[str] | None = None,
    extra_args_provider: ExtraArgs | None = None,
    world_size: int | None = None,
    args_defaults: Mapping[str, Any] | None = None,
    check_files: bool = False,
) -> Reading:
    """Read a command line without raising: the config as far as it can be known, and every error.

    `check_files`: look at the tokenizer's, the data's and the checkpoint's files, too.
    """
    args, line = read_command_line(sys.argv[1:] if argv is None else argv, extra_args_provider, args_defaults)
    args.rank = rank_of_environment()
    args.world_size = world_size or world_size_of_environment(1 if args.yaml_cfg is None else None)
    autos, file_errors, args.said_by_files = _read_files(args, line.given)
    size_of_file = args.said_by_files.pop("parallel_config.world_size", None)
    refused = check_given(args, line.given)
    forget_refused(args, line.given)
    values = field_values(args, look_at_files=check_files)
    args.world_size = args.world_size or size_of_file or from_yaml.smallest_world(values)
    values["parallel_config.world_size"] = args.world_size
    config, errors = build_with_errors(values)
    notes, open_ends = from_deepspeed.resolved(autos, config)
    found = [*line.errors, *file_errors, *refused, *errors, *open_ends, *(missing_files(args) if check_files else ())]
    return Reading(args, line.given, config, list(dict.fromkeys(_as_typed(found, line.given))), notes)


def _as_typed(errors: Sequence[str], given: Sequence[Given]) -> Iterator[str]:
    """Errors about a field name its own flag; where another flag filled the field, that one is put before it."""
    names = {entry.name for entry in given}
    fills = {FLAG_OF[entry.row.target]: entry.name for entry in given if entry.row.target in FLAG_OF}
    for error in errors:
        flag = error.split(maxsplit=1)[0].rstrip(":")
        if flag in fills and flag not in names:
            head, _, rest = error.partition(": ")
            error = f"{fills[flag]} ({head}): {rest}"
        yield error


def not_yet(reading: Reading) -> list[str]:
    """What is asked for, legally, that the engine cannot do yet."""
    return list(_as_typed([str(row) for row in unsupported(reading.config)], reading.given))


def _read_files(args: Namespace, given: Sequence[Given]) -> tuple[list[Auto], list[str], dict[str, Any]]:
    """What --deepspeed-config and --yaml-cfg say: what the first leaves open, errors, fields of several arguments."""
    deepspeed, yaml = (path if isinstance(path, str) else None for path in (args.deepspeed_config, args.yaml_cfg))
    autos, errors = from_deepspeed.apply(deepspeed, args, given) if deepspeed else ([], [])
    values, yaml_errors = from_yaml.overlay(yaml, args, given) if yaml else ({}, [])
    return autos, [*errors, *yaml_errors], values


def parse_args(
    argv: Sequence[str] | None = None,
    extra_args_provider: ExtraArgs | None = None,
    world_size: int | None = None,
    args_defaults: Mapping[str, Any] | None = None,
    check_files: bool = False,
) -> Namespace:
    """The arguments of a command line, the process's own if none is given, with Megatron's names and defaults.

    `world_size` is the number of processes, by default what the launcher's environment says. `args_defaults` replaces
    defaults by attribute name. What follows from other arguments (sizes, the padded vocabulary, types) is filled in.
    Raises `ConfigError` with every finding.
    """
    return _accepted(read(argv, extra_args_provider, world_size, args_defaults, check_files)).args


def _accepted(reading: Reading) -> Reading:
    if reading.errors:
        raise ConfigError(reading.errors)
    fill_in(reading.args, reading.config)
    return reading


def fill_in(args: Namespace, config: AllConfig) -> None:
    """Give arguments that were left open the value that the config derived for them, as Megatron's validation does."""
    copied = {row.target: row.dest for row in reversed(ROWS) if row.status == MAPPED and row.target not in DERIVED}
    exact = {"model_config.vocab_size": "padded_vocab_size", "model_config.params_dtype": "params_dtype"}
    for target, dest in {**copied, **exact}.items():
        if target and getattr(args, dest) is None:
            value = attrgetter(target)(config)
            setattr(args, dest, None if isinstance(value, Unknown) else value)
    args.data_parallel_size = config.parallel_config.data_parallel_size


def initialize_megatron(
    extra_args_provider: ExtraArgs | None = None,
    args_defaults: Mapping[str, Any] | None = None,
    argv: Sequence[str] | None = None,
    check_files: bool = True,
) -> Namespace:
    """Parse the command line for a training script and keep the result for `get_args`.

    `--help` among the arguments prints the flags that act. On errors - a flag that is not implemented yet is one - all
    of them are printed to the standard error of rank 0 and the process ends with exit code 2.
    """
    if "--help" in (sys.argv[1:] if argv is None else argv):
        from mapping.flag_reference import help_text

        print(help_text())
        raise SystemExit(0)
    with exit_on_mistakes():
        reading = _accepted(read(argv, extra_args_provider, None, args_defaults, check_files))
        complain(not_yet(reading))
    if reading.args.rank == 0:
        _print_notes(reading)
    set_args(reading.args)
    return reading.args


@contextmanager
def exit_on_mistakes() -> Iterator[None]:
    """Inside, a user's mistake (ValueError) is printed by rank 0, without a traceback, and ends the process with 2."""
    try:
        yield
    except ValueError as error:
        _print_errors(error.errors if isinstance(error, ConfigError) else [str(error)])
        raise SystemExit(2) from None


def _print_notes(reading: Reading) -> None:
    ignored = [given.name for given in reading.given if given.row.status == IGNORED]
    if ignored:
        print(f"ignored, the result is the same without: {' '.join(ignored)}")
    for note in reading.notes:
        print(note)


def _print_errors(errors: Sequence[str]) -> None:
    if rank_of_environment() == 0:
        print(*(f"error: {error}" for error in errors), sep="\n", file=sys.stderr)
    else:
        print(f"error: {len(errors)} errors in the arguments, listed by rank 0", file=sys.stderr)


def set_args(args: Namespace) -> None:
    """Make `args` what `get_args` returns."""
    global _global_args
    _global_args = args


def get_args() -> Namespace:
    """The arguments that `initialize_megatron` read."""
    if _global_args is None:
        raise ValueError("get_args(): no arguments yet; call initialize_megatron() first")
    return _global_args
