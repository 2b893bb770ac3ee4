"""Findings in the user's own words: a rule names a field by its flag, but the user may have given it by another
name."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mapping.flags import ROWS
from mapping.given import Given
from parallel_core.config.tree import FLAG_OF, PUBLIC
from parallel_core.findings import Finding, shown

_FLAG = re.compile(r"--[a-zA-Z][\w-]*")


def as_given(findings: Iterable[Finding], given: Sequence[Given]) -> list[Finding]:
    """The findings, none with the same words twice, each about the flag, the file's key or the attribute that was
    given.

    With a YAML file a field that nobody gave is named by the key that it would have there, and also by its flag if
    something was typed.
    """
    typed = {entry.name for entry in given}
    fills = {flag: entry for entry in given for flag in _flags_of(entry)}
    others = {flag: entry for flag, entry in fills.items() if flag not in typed or entry.name.startswith("args.")}
    of_one_field = Counter(name for name, _ in {(entry.name, entry.target) for entry in others.values()})
    keys = {
        flag: entry.name
        for flag, entry in others.items()
        if of_one_field[entry.name] == 1 and not entry.name.startswith("--")
    }
    keys = {flag: key for flag, key in _names_of_files(given).items() if flag not in fills} | keys
    named = (_named(finding, others, keys) for finding in findings)
    return list({str(finding): finding for finding in named}.values())


def _flags_of(entry: Given) -> Iterator[str]:
    """The flags by which rules name the field that a value fills, and the flag of a part of a field."""
    if entry.target in FLAG_OF:
        yield FLAG_OF[entry.target]
    if entry.row.name and entry.source:
        yield entry.row.name


def _names_of_files(given: Sequence[Given]) -> dict[str, str]:
    """Flag -> the name of the same option in the YAML file: an argument's where the file has arguments, else a
    section's; empty without a file."""
    path = next((entry.value for entry in given if entry.row.dest == "yaml_cfg"), None)
    is_alone = all(entry.source for entry in given)
    of_file = [entry for entry in given if is_alone or entry.source == path is not None]
    if not of_file:
        return {}
    if any(entry.field for entry in of_file):
        names = {flag: PUBLIC[path] for path, flag in reversed(FLAG_OF.items())}
    else:
        names = {row.name: row.dest for row in ROWS}
    return {flag: name if is_alone else f"{name} ({flag})" for flag, name in names.items()}


def _named(finding: Finding, others: Mapping[str, Given], keys: Mapping[str, str]) -> Finding:
    """The finding with the user's names. others: flag -> the value that filled its field instead. keys: flag -> the key
    of the file that fills the same field and no other."""
    flags, rule, fix = (
        _FLAG.sub(lambda flag: keys.get(flag[0], flag[0]), text) for text in (finding.flag, finding.rule, finding.fix)
    )
    entry = others.get(finding.flag)
    if entry is None:
        return finding._replace(flag=flags, rule=rule, fix=fix)
    same = finding.value is None or (type(finding.value) is type(entry.value) and finding.value == entry.value)
    value = finding.value if same else f"({shown(finding.flag, finding.value)})"
    return Finding(entry.name, value, rule, fix, entry.source)
