"""Mistakes in a user's request, as values; sentences are made where people read them."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """One mistake: the flag (or key of a configuration file) and the value that are at fault, the rule that the value
    breaks, the change to make, and the configuration file from which it was read ("": none). Its text:
    `--lr -1: must be at least 0; raise it`."""

    flag: str
    """The flag, or the key of a configuration file, that is at fault. Rules of the config name a field by its flag."""
    value: Any
    """The value that was given; None or true where the flag alone says it."""
    rule: str
    """The rule that the value breaks, as a clause behind "flag value:"."""
    fix: str = ""
    """The change to make, as an imperative."""
    source: str = ""
    """The configuration file from which the value was read; empty: none, such as for the command line."""

    def __str__(self) -> str:
        return f"{shown(self.flag, self.value)}: {self.rule}{f'; {self.fix}' if self.fix else ''}"


def shown(flag: str, value: Any) -> str:
    """A flag, a blank and its value as text, a float to 12 digits; the flag alone for None and true."""
    if value is None or value is True:
        return flag
    return f"{flag} {value:.12g}" if isinstance(value, float) else f"{flag} {value}"


class Setting(NamedTuple):
    """A value and the flag, or other name, by which messages call it."""

    flag: str
    value: Any

    def __str__(self) -> str:
        return shown(self.flag, self.value)

    def breaks(self, rule: str, fix: str) -> Finding:
        """A finding about this flag and value, which break `rule`."""
        return Finding(self.flag, self.value, rule, fix)


class SaysAll(Exception):
    """An error whose words tell a user all there is to know, so that no traceback is needed."""


class ConfigError(ValueError, SaysAll):
    """One or several mistakes of a user's request: `.findings`, and as sentences `.errors`."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = list(findings)
        self.errors = [str(finding) for finding in self.findings]
        super().__init__("\n".join(self.errors))

    def __reduce__(self) -> tuple[type, tuple[list[Finding]]]:
        """The class and the findings of which pickle makes it anew, so that a process can hand it to another."""
        return type(self), (self.findings,)


def exit_code(work: Callable[[], None]) -> int:
    """Do a command's work and return 0, or 1 after a ValueError or OSError, which is printed on the error stream."""
    try:
        work()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
