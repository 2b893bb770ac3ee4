"""Configuration files: our sections by name, the nested schema of the 38B example, Megatron's --yaml-cfg layout."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mapping.flags import MAPPED, ROWS, Flag
from mapping.from_args import DERIVED, FLAG_OF, NESTED, SECTIONS, build_with_errors
from mapping.nested_schema import translate
from mapping.parser import Given, nearest, suggest, world_size_of_environment
from mapping.tree import leaves
from mapping.yaml_arguments import is_megatron_layout, put_megatron_layout, read_megatron_layout
from parallel_core.config import AllConfig, ConfigError
from parallel_core.config.base import field_types, has_type

Values = dict[str, Any]


def init_configs_from_yaml(path: str | Path, world_size: int | None = None) -> AllConfig:
    """The config of a YAML file; see `init_configs_from_dict`."""
    return init_configs_from_dict(_load(path), world_size)


def _load(path: str | Path) -> dict[str, Any]:
    import yaml

    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigError([f"{path}: must hold sections with keys and values"])
    return content


def init_configs_from_dict(content: Mapping[str, Any], world_size: int | None = None) -> AllConfig:
    """The config of a dictionary in one of the three layouts, told apart by their top keys.

    `world_size`: processes of the job; by default what the launcher's environment says, else the fewest that hold the
    model. Raises `ConfigError` with every finding; an unknown key is one, with the nearest known names.
    """
    values, errors = values_of(content)
    values.setdefault(
        "parallel_config.world_size", world_size or world_size_of_environment(None) or smallest_world(values)
    )
    config, found = build_with_errors(values)
    if errors or found:
        raise ConfigError([*errors, *found])
    return config


def smallest_world(values: Values) -> int:
    """The fewest processes that hold the model and a sequence."""
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    world = 1
    for name in sizes:
        size = values.get(f"parallel_config.{name}", 1)
        world *= size if isinstance(size, int) and size > 0 else 1
    return world


def values_of(content: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Target -> value of a dictionary in any of the three layouts, and what is wrong with it."""
    if is_megatron_layout(content):
        return read_megatron_layout(content)
    nested = "accelerate_config" in content or "train_config" in content or "llm" in content.get("model_config", {})
    values, errors = translate(content) if nested else _by_section(content)
    readable: Values = {}
    for target, value in values.items():
        try:
            readable[target] = coerced(target, value)
        except ValueError:
            errors.append(f"{target}: {value!r} is not of type {_TYPES[target]}")
    return readable, errors


def overlay(path: str, args: Namespace, given: Sequence[Given]) -> tuple[Values, list[str]]:
    """Put what a file says into arguments that were not typed. Returns the fields that no single argument fills."""
    if not Path(path).is_file():
        return {}, [f"--yaml-cfg {path}: there is no such file"]
    content = _load(path)
    if is_megatron_layout(content):
        return {}, put_megatron_layout(content, args, given)
    values, errors = values_of(content)
    typed = {entry.row.target for entry in given}
    copied = {row.target: row.dest for row in reversed(ROWS) if row.status == MAPPED and row.target not in DERIVED}
    rest: Values = {}
    for target, value in values.items():
        if target in copied and target not in typed:
            setattr(args, copied[target], value)
        elif target not in typed:
            rest[target] = value
    return rest, errors


def _types() -> dict[str, Any]:
    return {
        f"{path}.{name}": hint
        for path, cls in {**SECTIONS, **NESTED}.items()
        for name, hint in field_types(cls).items()
    }


_TYPES = _types()


def _is_copied(row: Flag) -> bool:
    """Whether a value of the flag is one of its field, for fields that are derived only if the flag is their own."""
    own = row.type in (int, str) and FLAG_OF.get(row.target) == row.name
    return row.status == MAPPED and bool(row.target) and (own or row.target not in DERIVED)


_OTHER_NAMES = {
    f"{section}.{row.dest}": row.target
    for row in ROWS
    if _is_copied(row)
    for section in (row.target.rpartition(".")[0], row.target.partition(".")[0])
}
"""Megatron's names of the same, in the field's section or in the one around it."""


def _by_section(content: Mapping[str, Any]) -> tuple[Values, list[str]]:
    values, errors = {}, []
    for path, value in leaves(content, lambda path: path in SECTIONS or path in NESTED):
        target = path if path in _TYPES else _OTHER_NAMES.get(path)
        if target is None:
            errors.append(f"{path}: there is no such key{_nearest(path)}")
        elif value is not None:
            values[target] = value
    return values, errors


def _nearest(path: str) -> str:
    """A suggestion: names like this one in its section, else anywhere."""
    section, _, name = path.rpartition(".")
    known = [*_TYPES, *_OTHER_NAMES]
    near = nearest(name, [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == section])
    inside = ", ".join(f"{section}.{found}" for found in near)
    return f"; did you mean {inside}?" if near else suggest(path, known)


def coerced(target: str, value: Any) -> Any:
    """`value` in the type of its field: YAML reads 1e-5 as text, and has no tuples."""
    hint = _TYPES[target]
    if isinstance(value, str) and not has_type(value, hint):
        value = next(row.type for row in ROWS if row.target == target and row.type is not None)(value)
    if isinstance(value, list) and has_type((), hint):
        return tuple(value)
    return value
