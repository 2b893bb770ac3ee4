"""Findings in the user's own words: a rule names a field by its flag, the user may have filled it by another name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mapping.flags import ROWS
from mapping.given import Given
from parallel_core.config.tree import FLAG_OF, PUBLIC
from parallel_core.findings import Finding, shown

_FLAG = re.compile(r"--[a-zA-Z][\w-]*")


def as_given(findings: Iterable[Finding], given: Sequence[Given]) -> list[Finding]:
    """The findings, none twice, each about the flag, the file's key or the attribute that was given."""
    typed = {entry.name for entry in given}
    fills = {FLAG_OF[entry.target]: entry for entry in given if entry.target in FLAG_OF}
    others = {flag: entry for flag, entry in fills.items() if flag not in typed or entry.name.startswith("args.")}
    of_one_field = Counter(entry.name for entry in others.values())
    keys = {
        flag: entry.name
        for flag, entry in others.items()
        if of_one_field[entry.name] == 1 and not entry.name.startswith("--")
    }
    if given and all(entry.source for entry in given):
        keys = _names_of_files(given) | keys
    named = (_named(finding, others, keys) for finding in findings)
    return list({str(finding): finding for finding in named}.values())


def _names_of_files(given: Sequence[Given]) -> dict[str, str]:
    """Flag -> what a file calls it, if nothing was typed: the argument where it has arguments, else the section's."""
    if not any(entry.field for entry in given):
        return {row.name: row.dest for row in ROWS}
    return {flag: PUBLIC[path] for path, flag in reversed(FLAG_OF.items())}


def _named(finding: Finding, others: Mapping[str, Given], keys: Mapping[str, str]) -> Finding:
    """`others`: flag -> what filled its field instead. `keys`: flag -> the key that says the same and nothing else."""
    rule, fix = (_FLAG.sub(lambda flag: keys.get(flag[0], flag[0]), text) for text in (finding.rule, finding.fix))
    entry = others.get(finding.flag)
    if entry is None:
        return finding._replace(flag=keys.get(finding.flag, finding.flag), rule=rule, fix=fix)
    same = finding.value is None or (type(finding.value) is type(entry.value) and finding.value == entry.value)
    value = finding.value if same else f"({shown(finding.flag, finding.value)})"
    return Finding(entry.name, value, rule, fix, entry.source)
