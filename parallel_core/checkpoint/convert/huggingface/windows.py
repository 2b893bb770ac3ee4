"""Sliding windows of attention in config.json.

A window of W in config.json is W tokens, the query's own among them; ours, as Megatron's --window-size W,0, is W tokens
before its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface.kinds import Group, Settings
from parallel_core.checkpoint.networks import layers_with_window

_SIZE, _SKIPPED = "model_config.sliding_window.size", "model_config.sliding_window.skip_freq"
_UNUSED = 128
_KINDS = {"sliding_attention": 1, "full_attention": 0}

Rule = Callable[[Mapping[str, Any], int], bool]
"""(config.json, layer) -> whether the layer has the window, where no list of layers says so."""


def _read(config: Mapping[str, Any], size: int | None, layers: list[int]) -> Settings:
    if not size or not any(layers):
        return {}
    return {_SIZE: size - 1, _SKIPPED: None if all(layers) else layers}


def _layers_out(ours: Settings) -> list[int]:
    return layers_with_window(ours.get(_SIZE), ours.get(_SKIPPED), ours["model_config.num_layers"])


def everywhere(default: int | None = None) -> Group:
    """The row of `sliding_window` in a family's table, for models in which all layers have the window or none. default:
    its size, as config.json counts it, where the key is missing (None: no layer has the window); with the value null or
    0 no layer has it. Writing raises ValueError if only some layers have it."""

    def read(config: Mapping[str, Any]) -> Settings:
        return _read(config, config.get("sliding_window", default), [1])

    def write(ours: Settings) -> Mapping[str, Any]:
        layers = _layers_out(ours)
        if any(layers) and not all(layers):
            raise ValueError(f"layers with a sliding window {layers}: its config.json can only say all of them")
        return {"sliding_window": ours[_SIZE] + 1 if any(layers) else None}

    return Group(("sliding_window",), read, write)


def by_switch(rule: Rule | None = None) -> Group:
    """The row of windows in a family's table, for models in which `use_sliding_window` switches them on: the layers
    that `layer_types` calls "sliding_attention" then have the window or, without that list, those of `rule`. rule None:
    all layers have it, whatever `layer_types` says.

    Reading takes 4096 for a missing `sliding_window`; with null or 0 no layer has a window. With a rule it raises
    ValueError if the switch is off and `layer_types` names layers with a window, and if the switch is on and
    `layer_types` has another length than the model or an unknown name. Writing without a rule raises ValueError if only
    some layers have it.
    """

    def read(config: Mapping[str, Any]) -> Settings:
        if not config.get("use_sliding_window"):
            if rule is not None and "sliding_attention" in (config.get("layer_types") or ()):
                raise ValueError("config.json: use_sliding_window is false, and layer_types has 'sliding_attention'")
            return {}
        return _read(config, config.get("sliding_window", 4096), _layers_in(config, rule))

    def write(ours: Settings) -> Mapping[str, Any]:
        layers = _layers_out(ours)
        if not any(layers):
            return {"use_sliding_window": False, "sliding_window": None}
        found = {"use_sliding_window": True, "sliding_window": ours[_SIZE] + 1}
        if rule is None and not all(layers):
            raise ValueError(f"layers with a sliding window {layers}: its config.json can only say all of them")
        named = {"layer_types": _types_of(layers), "max_window_layers": layers.index(1)}
        return found if rule is None else found | named

    keys = ("use_sliding_window", "sliding_window", "layer_types", "max_window_layers", "num_hidden_layers")
    return Group(keys, read, write)


def by_layer_types(rule: Rule, *keys: str) -> Group:
    """The row of windows in a family's table, for models in which the layers that `layer_types` calls
    "sliding_attention" have the window, or without that list those for which `rule` is true; none has it where
    `sliding_window` is missing, null or 0. keys: the keys of config.json that `rule` reads. Reading raises ValueError
    for a `layer_types` of another length than the model or with an unknown name."""

    def read(config: Mapping[str, Any]) -> Settings:
        return _read(config, config.get("sliding_window"), _layers_in(config, rule))

    def write(ours: Settings) -> Mapping[str, Any]:
        """`sliding_window` and `layer_types` for config.json. The size is 128 if no layer has the window."""
        layers = _layers_out(ours)
        return {"sliding_window": ours[_SIZE] + 1 if any(layers) else _UNUSED, "layer_types": _types_of(layers)}

    return Group(("sliding_window", "layer_types", "num_hidden_layers", *keys), read, write)


def _types_of(layers: list[int]) -> list[str]:
    kinds = {number: kind for kind, number in _KINDS.items()}
    return [kinds[number] for number in layers]


def _layers_in(config: Mapping[str, Any], rule: Rule | None) -> list[int]:
    if rule is None:
        return [1]
    types = config.get("layer_types")
    if types is None:
        return [int(rule(config, layer)) for layer in range(config["num_hidden_layers"])]
    if len(types) != config["num_hidden_layers"]:
        raise ValueError(f"config.json: layer_types has {len(types)} entries, not {config['num_hidden_layers']}")
    unknown = sorted(set(types) - _KINDS.keys())
    if unknown:
        raise ValueError(f"config.json: layer_types {unknown[0]!r} is not known; known are {', '.join(_KINDS)}")
    return [_KINDS[kind] for kind in types]


def from_a_layer_on(config: Mapping[str, Any], layer: int) -> bool:
    """Whether layer `layer` has the window: from number `max_window_layers` (28 without the key), counted from 0, on
    (Qwen2, Qwen3)."""
    return bool(layer >= config.get("max_window_layers", 28))


def every_other_before_a_layer(config: Mapping[str, Any], layer: int) -> bool:
    """Whether layer `layer` has the window: even numbers, counted from 0, below `max_window_layers` (28 without the
    key; Qwen2-MoE)."""
    return layer % 2 == 0 and bool(layer < config.get("max_window_layers", 28))


def every_other(config: Mapping[str, Any], layer: int) -> bool:
    """Whether layer `layer` has the window: even numbers, counted from 0 (Gemma 2, gpt-oss)."""
    return layer % 2 == 0


def but_every_fourth(config: Mapping[str, Any], layer: int) -> bool:
    """Whether layer `layer` has the window: all but every fourth, 3, 7, ..., counted from 0 (OLMo 3)."""
    return (layer + 1) % 4 != 0


def but_every_sixth(config: Mapping[str, Any], layer: int) -> bool:
    """Whether layer `layer` has the window: all but every sixth (5, 11, ..., counted from 0) or, where config.json
    has `sliding_window_pattern` or `_sliding_window_pattern`, all but every so many-th (Gemma 3)."""
    every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    return (layer + 1) % every != 0
