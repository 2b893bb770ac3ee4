"""Configuration files: our sections by name, the nested schema of the 38B example, Megatron's --yaml-cfg layout."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mapping.given import Given
from mapping.readers import yaml_megatron, yaml_nested, yaml_sections
from parallel_core.findings import Finding, shown
from parallel_core.system.files import read_yaml


def read(path: str | Path) -> tuple[list[Given], list[Finding]]:
    """The values of a file, and findings about it: also about one that cannot be read."""
    try:
        content = read_yaml(Path(path))
    except FileNotFoundError:
        return [], [Finding("--yaml-cfg", path, "there is no such file", "give the path of an existing one")]
    except (OSError, ValueError) as error:
        return [], [Finding("--yaml-cfg", path, f"cannot be read: {error}", "mend it")]
    if not isinstance(content, dict):
        return [], [Finding("--yaml-cfg", path, "must hold sections with keys and values", "mend it")]
    return values_of(content, str(path))


def values_of(content: Mapping[str, Any], source: str) -> tuple[list[Given], list[Finding]]:
    """The values of a dictionary in one of the three layouts, and findings about it. The first layout whose
    `is_layout_of` is true counts, Megatron's before the nested one; if neither's is, that of sections.
    source: the name of the dictionary, or of its file, in messages."""
    layout = next(
        (layout for layout in (yaml_megatron, yaml_nested) if layout.is_layout_of(content)),
        yaml_sections,
    )
    given, findings = layout.read(content, source)
    given = [_beside(entry, given) for entry in given]
    return given, [*findings, *_contradictions(given)]


def _beside(entry: Given, given: Sequence[Given]) -> Given:
    """The value; if it is its key's default, and another key of the file fills the same with another value, with the
    reason that the other one counts."""
    if not entry.is_default:
        return entry
    others = (other for other in given if other.replaces(entry) and not other.is_default)
    other = next((other for other in others if other.value != entry.value), None)
    if other is None:
        return entry
    reason = f"that is its default, and {shown(other.name, other.value)} counts"
    return Given(entry.name, entry.value, source=entry.source, reason=reason)


def _contradictions(given: Sequence[Given]) -> Iterator[Finding]:
    """Findings about keys that fill a field which an earlier key of the file fills with another value."""
    given = [entry for entry in given if not entry.is_default]
    for position, entry in enumerate(given):
        earlier = (other for other in given[:position] if other.replaces(entry))
        other = next(earlier, entry)
        if other is not entry and other.value != entry.value:
            rule = f"contradicts {shown(other.name, other.value)}"
            yield Finding(entry.name, entry.value, rule, "leave one of them out", entry.source)
