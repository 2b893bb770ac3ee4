"""How Megatron cuts each parameter over its ranks: rows of (name, cut), the first that fits counts.

For models that the engine builds these are the blocks' `ShardSpec`s; this table also has what only files have so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parallel_core.attention.fused_rows import GATED_PARTS
from parallel_core.numerics.activations import ACTIVATIONS
from parallel_core.sharding import Cut, ShardSpec

_GATED = "gated"
_LOCAL = "local"
"""What Megatron's local implementation cuts, and Transformer Engine's has whole on every rank."""

_ROWS: tuple[tuple[str, tuple[int, str] | None, str], ...] = (
    (r"embedding\.word_embeddings\.weight|output_layer\.(weight|bias)", (0, "tp"), ""),
    (r".*\.local_experts\.\d+\.linear_fc1\.(weight|bias)", (0, "expert-tp"), _GATED),
    (r".*\.local_experts\.\d+\.linear_fc2\.weight", (1, "expert-tp"), ""),
    (r".*\.linear_fc1\.(weight|bias)", (0, "tp"), _GATED),
    (r".*\.(linear_qkv|linear_q_proj|linear_q_up_proj|linear_kv_up_proj|eh_proj)\.(weight|bias)", (0, "tp"), ""),
    (r".*\.(linear_proj|linear_fc2)\.weight", (1, "tp"), ""),
    (r".*\.(linear_proj|linear_fc2)\.bias", None, ""),
    (r".*\.(linear_q_down_proj|linear_kv_down_proj)\.(weight|bias)", (0, "tp"), _LOCAL),
    (r".*\.indexer\.(linear_wq_b|linear_wk|linear_weights_proj)\.(weight|bias)", None, ""),
    (r".*(norm)\.(weight|bias)", None, ""),
    (r".*\.router\.(weight|bias|expert_bias)|.*\.shared_experts\.gate_weight", None, ""),
    (r"embedding\.position_embeddings\.weight", None, ""),
)

BUFFERS = re.compile(r".*\.router\.expert_bias$")
"""Tensors of a model that its optimizer does not have."""


def spec_of(name: str, shape: tuple[int, ...], gated: bool, local: bool = False) -> ShardSpec:
    """A parameter's whole shape and its cut; `local`: by Megatron's local implementation. Raises ValueError for a
    name that no row has."""
    for pattern, cut, kind in _ROWS:
        if re.fullmatch(pattern, name):
            parts = GATED_PARTS if kind == _GATED and gated else 1
            replicas = "expert-dp" if ".local_experts." in name else "dp-cp"
            acts = kind != _LOCAL or local
            cuts = (Cut(cut[0], cut[1], parts),) if cut is not None and acts else ()
            return ShardSpec(shape=shape, name=name, cuts=cuts, replicas=replicas)
    raise ValueError(f"{name}: not a parameter that is known, so how it is cut is not known either")


def whole_shape(
    name: str, held: tuple[int, ...], sizes: Mapping[str, int], gated: bool, local: bool = False
) -> tuple[int, ...]:
    """The shape of a parameter of which a rank holds `held`; sizes: kind of a group -> number of its ranks."""
    shape = list(held)
    for cut in spec_of(name, held, gated, local).cuts:
        shape[cut.axis] *= sizes.get(cut.over, 1)
    return tuple(shape)


def rows_of_down_projections(network: Mapping[str, Any]) -> dict[str, int]:
    """Linear of latent attention -> its rows; of a model without it, nothing."""
    latent = network.get("multi_latent_attention") or {}
    rank, rotary_key = latent.get("kv_lora_rank"), latent.get("qk_pos_emb_head_dim")
    rows = {"linear_q_down_proj": latent.get("q_lora_rank")}
    if rank and rotary_key:
        rows["linear_kv_down_proj"] = rank + rotary_key
    return {linear: count for linear, count in rows.items() if count}


def is_gated(network: Mapping[str, Any]) -> bool:
    """Whether the first feed-forward linear has two halves."""
    return ACTIVATIONS[network.get("hidden_act", "gelu")].gated
