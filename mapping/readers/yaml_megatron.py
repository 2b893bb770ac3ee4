"""Megatron's --yaml-cfg layout: arguments by attribute name, two groups of them under headings of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mapping.flags import ROWS, Flag
from mapping.given import Given
from mapping.readers.command_line import Unreadable, taken
from mapping.readers.keys import unknown
from parallel_core.findings import Finding

HEADINGS = ("language_model", "model_parallel")

RENAMED = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "num_moe_experts": "num_experts",
    "bias_activation_fusion": "bias_gelu_fusion",
}
"""Keys that Megatron's model config has under another name than its arguments."""

ACTIVATIONS = {"swiglu": "swiglu", "squaredrelu": "squared_relu"}
"""`activation_func` -> the argument that asks for it; gelu is the default."""

WITHOUT_EFFECT = {
    "gated_linear_unit": "activation_func says it",
    **dict.fromkeys(("init_method", "output_layer_init_method"), "weights start from a normal distribution"),
    "perform_initialization": "weights that are not loaded are initialised",
    **dict.fromkeys(("enable_autocast", "autocast_dtype"), "bf16 and fp16 say the compute type"),
    **dict.fromkeys(
        (
            "memory_efficient_layer_norm",
            "deallocate_pipeline_outputs",
            "cpu_offloading_activations",
            "cpu_offloading_weights",
        ),
        "only memory and speed change",
    ),
    **dict.fromkeys(
        ("batch_p2p_comm", "batch_p2p_sync"), "only the order of work and communication changes, not the result"
    ),
    **dict.fromkeys(("finalize_model_grads_func", "timers"), "the training loop sets it"),
}
"""Keys that do nothing -> why."""


def is_layout_of(content: Mapping[str, Any]) -> bool:
    """Whether the top keys are Megatron's."""
    return any(heading in content for heading in HEADINGS)


def read(content: Mapping[str, Any], source: str) -> tuple[list[Given], list[Finding]]:
    """The values of a dictionary, and what is wrong with it; a key without a value says nothing."""
    given: list[Given] = []
    findings: list[Finding] = []
    for key, value in _entries(content):
        found = None if value is None else _read(key, value, source)
        if isinstance(found, Finding):
            findings.append(found)
        elif found is not None:
            given.append(found)
    return given, findings


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if key in HEADINGS:
            yield from (value or {}).items()
        else:
            yield key, value


_BY_DEST: dict[str, list[Flag]] = {}
for _row in ROWS:
    _BY_DEST.setdefault(_row.dest, []).append(_row)


def _read(key: str, value: Any, source: str) -> Given | Finding | None:
    """None: the value is what holds without it."""
    name = RENAMED.get(key, key)
    if key == "activation_func" and value == "gelu":
        return None
    if key == "activation_func" and value in ACTIVATIONS:
        name, value = ACTIVATIONS[value], True
    if name in WITHOUT_EFFECT:
        return Given(key, value, source=source, reason=WITHOUT_EFFECT[name])
    if name not in _BY_DEST:
        return unknown(key, [*_BY_DEST, *RENAMED, "activation_func", *WITHOUT_EFFECT], source)
    rows = _BY_DEST[name]
    row = next((row for row in rows if row.type is not None or row.stores == value), None)
    if row is None:
        switched = isinstance(value, bool)
        return None if switched else Finding(key, value, "must be true or false", "change it", source)
    try:
        return Given(key, taken(row, value), row, source=source)
    except Unreadable as error:
        return Finding(key, error.word, error.rule, "change it", source)
