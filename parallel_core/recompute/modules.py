"""The modules of a layer that can be computed again, and the names by which users know them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

UP_PROJECTIONS = "self_attention.up_projections"
"""Of latent attention, with the rotation: what makes queries, keys and values of latents. Their results are dropped."""

MEGATRON_MODULES = {
    "mla_up_proj": (UP_PROJECTIONS,),
    "core_attn": ("self_attention.core_attention",),
    "layernorm": ("input_layernorm", "pre_mlp_layernorm"),
    "mlp": ("mlp",),
    "moe": ("moe",),
    "moe_act": ("moe.experts.activation",),
    "shared_experts": ("moe.shared_experts",),
}
"""Value of --recompute-modules -> modules."""

FIRST_LINEAR = "mlp.linear_fc1"
ACTIVATION = ("mlp.activation",)
"""--recompute-activation-function."""
NORMS = MEGATRON_MODULES["layernorm"]
"""--recompute-norm."""

OUTPUT_DROPPED = frozenset({*NORMS, *ACTIVATION, *MEGATRON_MODULES["moe_act"]})
"""Modules whose input is kept in any case and whose output only the linear after it keeps: that is what is made again,
when the linear's weight gradient needs it."""

_OF_DENSE_LAYERS = ("mlp", "mlp.linear_fc1", "mlp.activation")
_OF_LAYERS_OF_EXPERTS = ("moe", "moe.experts.activation", "moe.shared_experts")
MODULES = (
    *("input_layernorm", "self_attention", UP_PROJECTIONS, "self_attention.core_attention", "pre_mlp_layernorm"),
    *(*_OF_DENSE_LAYERS, *_OF_LAYERS_OF_EXPERTS),
)
"""Paths within a layer. A mixture of experts, which stands at `mlp`, is `moe` here: nobody who names the feed-forward
block of dense layers means it."""


class _Experts(Protocol):
    """What a MoEConfig says."""

    moe_shared_expert_intermediate_size: int | None

    def has_experts(self, layer: int) -> bool: ...


class LayerKind(NamedTuple):
    """What a layer is made of, as far as layers differ in it."""

    has_experts: bool = False
    has_shared_experts: bool = False
    has_latent_attention: bool = False

    @classmethod
    def of(cls, experts: _Experts, has_latent_attention: bool, number: int) -> LayerKind:
        """Of the layer of this global number, from 0."""
        has_experts = experts.has_experts(number)
        has_shared_experts = has_experts and experts.moe_shared_expert_intermediate_size is not None
        return cls(has_experts, has_shared_experts, has_latent_attention)

    @property
    def modules(self) -> tuple[str, ...]:
        """Those of `MODULES` that such a layer has."""
        absent = {*(_OF_DENSE_LAYERS if self.has_experts else _OF_LAYERS_OF_EXPERTS)}
        absent |= set() if self.has_shared_experts else {"moe.shared_experts"}
        absent |= set() if self.has_latent_attention else {UP_PROJECTIONS}
        return tuple(module for module in MODULES if module not in absent)


def modules_of(kinds: Iterable[LayerKind]) -> tuple[str, ...]:
    """What layers of these kinds have together, in the order of a layer."""
    there = {module for kind in {*kinds} for module in kind.modules}
    return tuple(sorted(there, key=MODULES.index))


def path_in_layer(module: str) -> str:
    """Where a module stands in its layer."""
    return f"mlp{module.removeprefix('moe')}" if module in _OF_LAYERS_OF_EXPERTS else module


_ALIASES = {
    "latent.up_projections": UP_PROJECTIONS,
    "attention_norm": "input_layernorm",
    "attention_norm.norm": "input_layernorm",
    "input_layernorm.norm": "input_layernorm",
    "attention": "self_attention",
    "attention.flash_attention": "self_attention.core_attention",
    "self_attention.core_attention.flash_attention": "self_attention.core_attention",
    "ffn_norm": "pre_mlp_layernorm",
    "ffn_norm.norm": "pre_mlp_layernorm",
    "pre_mlp_layernorm.norm": "pre_mlp_layernorm",
    "feed_forward": "mlp",
    "feed_forward.w1.matmul": "mlp.linear_fc1",
    "feed_forward.w3.matmul": "mlp.linear_fc1",
    "feed_forward.w1.activation.silu": "mlp.activation",
    "feed_forward.mul": "mlp.activation",
    "mlp.activation_func.silu": "mlp.activation",
    "mlp.mul": "mlp.activation",
}
NAMES = {**{path: path for path in MODULES}, **_ALIASES}
"""Path by which a module may be named, its own or one of the earlier system's layers -> its path. Gate and up are one
linear here, and a gated activation is one operator."""

DEFAULT_SELECT = (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu")
DEFAULT_COMMUNICATION = (r".*\.norm",)
"""Patterns of settings that give none."""

LINEAR_AFTER = {"input_layernorm": "self_attention.linear_qkv", "pre_mlp_layernorm": "mlp.linear_fc1"}
"""A norm's collective is the gather of its output: the one with which the linear after it begins."""


def matching(pattern: str) -> tuple[str, ...]:
    r"""The modules that a pattern names: regular expressions with `\.` between them, each of which must match the whole
    of a child's name. Raises ValueError (`re.error` is one, too) for what is no regular expression."""
    parts = pattern.split(r"\.")
    try:
        expressions = [re.compile(part) for part in parts]
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    found = dict.fromkeys(path for name, path in NAMES.items() if _matches(expressions, name.split(".")))
    return tuple(sorted(found, key=MODULES.index))


def _matches(expressions: list[re.Pattern[str]], children: list[str]) -> bool:
    return len(expressions) == len(children) and all(
        expression.fullmatch(child) for expression, child in zip(expressions, children, strict=True)
    )


def rest_of_layer(kept: Iterable[str]) -> tuple[str, ...]:
    """What can be computed again of a layer but these modules, what they lie in and what lies in them. The first linear
    of a feed-forward block is run again with the activation, never without."""
    kept = set(kept)
    kept |= {FIRST_LINEAR} if kept.intersection(ACTIVATION) else set()
    return outermost(path for path in MODULES if not any(_meet(path, one) for one in kept))


def _meet(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without modules that lie in another of them, in the order of the layer."""
    chosen = set(paths)
    inner = {path for path in chosen for other in chosen if path.startswith(f"{other}.")}
    return tuple(sorted(chosen - inner, key=MODULES.index))
