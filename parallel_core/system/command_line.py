"""The parsers of our own commands' command lines, whose help says defaults of options; and a quiet end of a
command."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

DISTRIBUTION = "megatron-pynative"
"""The name of the distribution that pip installs, which is the console script's too."""

_NOT_SAID = (None, argparse.SUPPRESS)


def program(command: str = "") -> str:
    """The words to call `command` by, for its usage: "megatron-pynative plan" if this process runs that script, else
    "python -m mapping plan"; without a command the words before it."""
    name = DISTRIBUTION if Path(sys.argv[0]).name == DISTRIBUTION else "python -m mapping"
    return f"{name} {command}".strip()


class _Help(argparse.RawDescriptionHelpFormatter):
    """A help text that keeps the description's lines and adds to each option that has a default "(default: ...)"."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_said = action.nargs == 0 or action.default in _NOT_SAID or "default" in (action.help or "")
        return action.help if is_said else f"{action.help} (default: {_text(action.default)})"


def _text(default: object) -> str:
    words = default if isinstance(default, list | tuple) else [default]
    return " ".join(map(str, words)).replace("%", "%%")


class _Parser(argparse.ArgumentParser):
    """A parser that exits with 2 after an error, and prints the error before the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n{self.format_usage()}")


def command_line(
    description: str | None, program: str | None = None, usage: str | None = None
) -> argparse.ArgumentParser:
    """A parser that takes no abbreviations of options. program: the command in its usage; None: the script that
    runs. usage: the whole usage text; None: it is made of program and arguments."""
    return _Parser(program, usage=usage, description=description, formatter_class=_Help, allow_abbrev=False)


INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell has it."""


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Raise SystemExit with INTERRUPTED (130) on Ctrl-C (KeyboardInterrupt) within the block. A BrokenPipeError, as
    when the reader of standard output (`| head`) has ended, ends the block and is no error; standard
    output is dropped from then on."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
