"""The ways in that people know from Megatron: `initialize_megatron`, `parse_args`, `get_args`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from mapping.checks import check_given
from mapping.from_args import build_with_errors, field_values
from mapping.parser import ExtraArgs, rank_of_environment, read_command_line, world_size_of_environment
from parallel_core.config import AllConfig, ConfigError

_global_args: Namespace | None = None


def parse_args(argv: Sequence[str] | None = None, extra_args_provider: ExtraArgs | None = None,
               world_size: int | None = None, args_defaults: Mapping[str, Any] | None = None) -> Namespace:
    """The arguments of a command line, the process's own if none is given, with Megatron's names and defaults.

    `world_size` is the number of processes, by default what the launcher's environment says. `args_defaults` replaces
    defaults by attribute name. Raises `ConfigError` with every finding, of the flags and of what follows from them.
    """
    args, _, errors = read(argv, extra_args_provider, world_size, args_defaults)
    if errors:
        raise ConfigError(errors)
    return args


def read(argv: Sequence[str] | None = None, extra_args_provider: ExtraArgs | None = None,
         world_size: int | None = None, args_defaults: Mapping[str, Any] | None = None
         ) -> tuple[Namespace, AllConfig, list[str]]:
    """As `parse_args`, but returns the errors, and the config as far as it can be known."""
    args, line = read_command_line(sys.argv[1:] if argv is None else argv, extra_args_provider, args_defaults)
    args.world_size = world_size_of_environment() if world_size is None else world_size
    args.rank = rank_of_environment()
    config, errors = build_with_errors(field_values(args))
    return args, config, list(dict.fromkeys([*line.errors, *check_given(args, line.given), *errors]))


def initialize_megatron(extra_args_provider: ExtraArgs | None = None,
                        args_defaults: Mapping[str, Any] | None = None,
                        argv: Sequence[str] | None = None) -> Namespace:
    """Parse the command line for a training script and keep the result for `get_args`.

    On errors all of them are printed to the standard error of rank 0 and the process ends with exit code 2.
    """
    try:
        args = parse_args(argv, extra_args_provider, args_defaults=args_defaults)
    except ConfigError as error:
        _print_errors(error.errors)
        raise SystemExit(2) from None
    set_args(args)
    return args


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
