"""The tree of the configuration: every section and every option by its path, such as
`model_config.rope_scaling.factor`.

Code that walks this tree, or names an option by the end of its path, need not know in which section a field lives.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, NamedTuple

from parallel_core.config.all import AllConfig
from parallel_core.config.base import Config, types_of


class Option(NamedTuple):
    """An option of the configuration: a field that a flag fills."""

    path: str
    field: Field[Any]
    type: Any

    @property
    def flag(self) -> str:
        return str(self.field.metadata["flag"])

    @property
    def of(self) -> str:
        """The part that an option of the model or its experts describes: "network" (the function that it computes),
        "shapes" (seen in parameters' names and shapes, too) or "run" (training, rounding, layout). Without meaning for
        options of other sections."""
        return str(self.field.metadata["of"])

    @property
    def default(self) -> Any:
        """The option's default; None where it must be given, or is derived."""
        return None if self.field.default is MISSING else self.field.default


def _walk(cls: type, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """(path, class, None) for each section below `cls`, and (path, type, field) for each option."""
    for entry in fields(cls):
        path, kind = f"{prefix}{entry.name}", types_of(cls)[entry.name]
        if "flag" in entry.metadata:
            yield path, kind, entry
        elif "sibling" not in entry.metadata and isinstance(kind, type) and issubclass(kind, Config):
            yield path, kind, None
            yield from _walk(kind, f"{path}.")


_TREE = [*_walk(AllConfig, "")]

SECTIONS: dict[str, type[Config]] = {path: kind for path, kind, entry in _TREE if entry is None}
"""Path -> class of every section, outer ones before their inner ones."""

OPTIONS: dict[str, Option] = {path: Option(path, entry, kind) for path, kind, entry in _TREE if entry is not None}
"""Path -> option, for every option."""

MODEL = ("model_config", "moe_config")
"""Names of the sections that describe a model."""

OF_MODEL = tuple(path for path in OPTIONS if path.startswith(MODEL))
"""Paths of the options in the sections that describe a model."""

OF_NETWORK = tuple(path for path in OF_MODEL if OPTIONS[path].of == "network")
"""Paths of the model's options that decide the function that it computes, whatever its parameters."""

SHOWN: dict[str, str] = {
    f"{path}.{name}": f"{entry.name}.{name}"
    for path, kind in SECTIONS.items()
    for entry in fields(kind)
    for name in entry.metadata.get("shows", ())
}
"""Path under which users know an option that a section shows of a sibling -> its path: parallel_config.recompute ->
recompute_config.recompute."""

_WITHOUT_CONCERN = {
    f"{path}.{entry.name}.{option.name}": f"{path}.{option.name}"
    for path, kind in SECTIONS.items()
    for entry in fields(kind)
    if "concern" in entry.metadata
    for option in fields(entry.metadata["concern"])
}
PUBLIC: dict[str, str] = {
    **{path: path for path in OPTIONS},
    **_WITHOUT_CONCERN,
    **{path: name for name, path in SHOWN.items()},
}
"""Every option's path -> the path under which users know it: training_config.precision.bf16 is training_config.bf16."""

FLAG_OF: dict[str, str] = {path: option.flag for path, option in OPTIONS.items()}
"""Path of an option -> its flag, which findings name."""


@cache
def _paths_by_ending() -> dict[str, list[str]]:
    """Ending of a path -> paths of the options that end with it: `seed`, `training_config.seed`, ..."""
    found: dict[str, list[str]] = {}
    for path in OPTIONS:
        parts = path.split(".")
        for start in range(len(parts)):
            found.setdefault(".".join(parts[start:]), []).append(path)
    return found


def path_of(name: str) -> str:
    """The path of the one option whose path ends with `name`, one or more whole names, such as `seed`, `scales.logits`
    or `model_config.num_layers`. Raises AssertionError if none or several do."""
    paths = _paths_by_ending().get(name, [])
    assert len(paths) == 1, (name, paths)
    return paths[0]
