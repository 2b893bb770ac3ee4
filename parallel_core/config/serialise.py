"""A configuration as plain data: nested sections, as in files and manifests, and values by path, such as
"model_config.rope_scaling.factor". `Config.to_dict` gives nested sections, `values_of` the values in them by path, and
`build` a configuration of such values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, NamedTuple, get_origin

from parallel_core.config.all import AllConfig
from parallel_core.config.base import Config, Unknown, complain, has_type
from parallel_core.config.tree import FLAG_OF, MODEL, OPTIONS, PUBLIC, SECTIONS
from parallel_core.findings import Finding

TOKENIZER_FIELDS = (
    *("tokenizer_type", "vocab_file", "merge_file", "tokenizer_model", "tokenizer_kwargs"),
    *("pad_token_id", "eos_token_id"),
)

_PATHS = {name: path for path, public in PUBLIC.items() for name in (path, public)}
"""Path of an option, or the path under which users know it -> its path."""

_MISSING = object()


def get(settings: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a path of nested settings; `default` where there is none."""
    value: Any = settings
    for name in path.split("."):
        value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    return default if value is _MISSING else value


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path of nested settings, in place; missing sections are made, and the others on the path must
    be dictionaries."""
    *sections, name = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def fits(value: Any, path: str) -> bool:
    """Whether a value is not None and has the type of the option at a path, by `has_type`. Raises KeyError for a value
    other than None at a path that is not in `OPTIONS`."""
    return value is not None and has_type(value, OPTIONS[path].type)


def leaves(
    content: Mapping[str, Any], enter: Callable[[str], bool] = lambda path: True, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Path, as "a.b.c" behind `prefix`, and value of each entry of nested settings; a dictionary is an entry itself
    where enter(its path) is False, and one that is empty gives no entry where it is True."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and enter(path):
            yield from leaves(value, enter, f"{path}.")
        else:
            yield path, value


def values_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Path -> value of the options that settings name, without those that are None and those that a section only shows
    of another section (such as parallel_config.recompute, of recompute_config); a list is made a tuple where the
    option's type is one. Raises ValueError for an option that this version does not know and that is not None."""
    said = {name: value for name, value in leaves(settings, lambda name: name not in _PATHS) if value is not None}
    unknown = said.keys() - _PATHS.keys()
    if unknown:
        rule = "which this version does not know; load it by the version that saved it"
        raise ValueError(f"the checkpoint sets {', '.join(sorted(unknown))}, {rule}")
    found = {}
    for name, value in said.items():
        path = _PATHS[name]
        # a value that a section shows of another one belongs to a run
        if path.partition(".")[0] == name.partition(".")[0]:
            is_tuple = isinstance(value, list) and get_origin(OPTIONS[path].type) is tuple
            found[path] = tuple(value) if is_tuple else value
    return found


def build(values: Mapping[str, Any]) -> AllConfig:
    """The configuration of path -> value; other options are at their defaults or derived, and a path that no field has
    is passed over. Raises `ConfigError` for values that its checks refuse and for missing options that must be given,
    unless `gather_findings` takes the findings."""
    top = [path for path in SECTIONS if "." not in path]
    config = AllConfig(**{path: _section(path, values) for path in top})  # type: ignore[arg-type]
    config.given = dict(values)
    return config


class _Layout(NamedTuple):
    """The fields of a section: path -> name of inner sections and of the others, and path -> the fix that a finding
    names, of those others that must be given."""

    sections: dict[str, str]
    others: dict[str, str]
    required: dict[str, str]


@cache
def _layout(path: str) -> _Layout:
    """The fields of the section at `path`."""
    found = _Layout({}, {}, {})
    for entry in fields(SECTIONS[path]):
        inner = f"{path}.{entry.name}"
        (found.sections if inner in SECTIONS else found.others)[inner] = entry.name
        if inner in OPTIONS and entry.default is MISSING and entry.default_factory is MISSING:
            found.required[inner] = entry.metadata["missing"]
    return found


def _section(path: str, values: Mapping[str, Any]) -> Config:
    sections, others, required = _layout(path)
    given: dict[str, Any] = {name: _section(inner, values) for inner, name in sections.items()}
    given |= {name: values[inner] for inner, name in others.items() if inner in values}
    for inner, fix in required.items():
        if inner not in values:
            complain([Finding(FLAG_OF[inner], None, "must be given", fix)])
            given[others[inner]] = Unknown()
    return SECTIONS[path](**given)


def config_of(settings: Mapping[str, Mapping[str, Any]]) -> AllConfig:
    """The configuration of a model on one process, from its sections of `settings`; options that these leave open are
    at their defaults or derived.

    Raises ValueError as `values_of` does, and `ConfigError` as `build` does.
    """
    return build(values_of(model_of(settings)))


def model_of(sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sections of `sections` that describe the model, model_config and moe_config; {} for one that is missing."""
    return {name: sections.get(name, {}) for name in MODEL}


def config_for_inference(
    sections: Mapping[str, Mapping[str, Any]],
    dtype: str | None = None,
    **parallel: int | str | None,
) -> AllConfig:
    """The configuration of a saved model, adapters and tokenizer, on one process unless `parallel` says otherwise;
    without the sections of the training and without rounding to 8 bits. The vocabulary is padded to a multiple of the
    tensor-parallel ranks, if it has no such number of rows already.

    dtype: type of parameters and of computation, instead of the checkpoint's. parallel: options of ParallelConfig by
    name, such as device_target or world_size.
    Raises ValueError as `values_of` does, and `ConfigError`, which is one, as `build` does.
    """
    tokenizer = {name: get(sections, f"dataset_config.{name}") for name in TOKENIZER_FIELDS}
    tokenizer["tokenizer"] = get(sections, "dataset_config.tokenizer", {})
    kept = {**model_of(sections), "lora_config": sections.get("lora_config", {}), "dataset_config": tokenizer}
    types = {} if dtype is None else dict.fromkeys(TYPES, dtype)
    shares = parallel.get("tensor_model_parallel_size") or 1
    kept["model_config"] = {
        **kept["model_config"],
        "float8": {},  # new tokens are computed in the type of computation, so the prompt's must be, too
        **types,
        **_padded_for(int(shares), kept["model_config"]),
    }
    return build(values_of({**kept, "parallel_config": parallel}))


def _padded_for(shares: int, model: Mapping[str, Any]) -> dict[str, int]:
    """`vocab_size` and `unpadded_vocab_size` of a vocabulary padded to a multiple of `shares` rows; empty where it has
    such a number already."""
    rows: int | None = model.get("vocab_size")
    if rows is None or not rows % shares:
        return {}
    return {"vocab_size": rows + -rows % shares, "unpadded_vocab_size": model.get("unpadded_vocab_size") or rows}


TYPES = ("params_dtype", "compute_dtype", "embedding_init_dtype")
"""Options of a model that are names of types."""
