"""Megatron's --yaml-cfg layout: arguments by attribute name, two groups of them under headings of their own."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mapping.checks import check_given, forget_refused
from mapping.flags import ROWS, Flag
from mapping.from_args import field_values
from mapping.parser import Given, defaults, suggest

HEADINGS = ("language_model", "model_parallel")

RENAMED = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "num_moe_experts": "num_experts",
    "bias_activation_fusion": "bias_gelu_fusion",
}
"""Keys that Megatron's model config has under another name than its arguments."""

ACTIVATIONS = {"swiglu": "swiglu", "squaredrelu": "squared_relu", "gelu": None}
"""`activation_func` -> the argument that asks for it."""

WITHOUT_EFFECT = frozenset(
    (
        "gated_linear_unit",
        "init_method",
        "output_layer_init_method",
        "memory_efficient_layer_norm",
        "enable_autocast",
        "autocast_dtype",
        "deallocate_pipeline_outputs",
        "perform_initialization",
        "cpu_offloading_activations",
        "cpu_offloading_weights",
        "batch_p2p_comm",
        "batch_p2p_sync",
        "finalize_model_grads_func",
        "timers",
    )
)
"""Keys that repeat another key, or change memory and speed only."""


def is_megatron_layout(content: Mapping[str, Any]) -> bool:
    """Whether the top keys are Megatron's."""
    return any(heading in content for heading in HEADINGS)


def read_megatron_layout(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Target -> value, and what is wrong."""
    args = Namespace(**defaults())
    errors = put_megatron_layout(content, args, ())
    return field_values(args), errors


def put_megatron_layout(content: Mapping[str, Any], args: Namespace, typed: Sequence[Given]) -> list[str]:
    """Put what a file says into arguments that were not typed, nor their fields by another flag; what is wrong."""
    errors: list[str] = []
    taken = {name for entry in typed for name in (entry.row.dest, entry.row.target) if name}
    found = [entry for key, value in _arguments(content) for entry in _given(key, value, errors)]
    given = [entry for entry in found if not taken & {entry.row.dest, entry.row.target}]
    for entry in given:
        setattr(args, entry.row.dest, entry.value)
    errors += check_given(args, given)
    forget_refused(args, given)
    return errors


def _arguments(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if key in HEADINGS:
            yield from (value or {}).items()
        else:
            yield key, value


_BY_DEST: dict[str, list[Flag]] = {}
for _row in ROWS:
    _BY_DEST.setdefault(_row.dest, []).append(_row)


def _given(key: str, value: Any, errors: list[str]) -> Iterator[Given]:
    name = RENAMED.get(key, key)
    if key == "activation_func" and value in ACTIVATIONS:
        name, value = ACTIVATIONS[value] or "", True
    if value is None or name in ("", *WITHOUT_EFFECT):
        return
    rows = _BY_DEST.get(name)
    if rows is None:
        errors.append(f"{key}: there is no such key{suggest(key, [*_BY_DEST, *RENAMED])}")
        return
    row = next((row for row in rows if row.type is not None or row.stores == value), None)
    if row is None:
        return
    try:
        yield Given(row.name, row, _read(row, value))
    except (TypeError, ValueError):
        errors.append(f"{key}: {value!r} is not a value of {row.name}")


def _read(row: Flag, value: Any) -> Any:
    """A YAML value as the flag's reader would give it: YAML takes 1e-5 for text."""
    if row.type is None or isinstance(value, list | bool):
        return value
    read = row.type(str(value)) if not isinstance(value, int) or row.type is not float else float(value)
    if row.choices and read not in row.choices:
        raise ValueError(value)
    return read if row.nargs is None else [read]
