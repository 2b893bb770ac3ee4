"""Names of linears in --lora-target-modules that other releases of Megatron-LM and MindSpeed-LLM use."""

from __future__ import annotations

from typing import Any

_OLDER_CLASSES: dict[str, tuple[str, ...]] = {
    "query_key_value": ("linear_qkv",),
    "dense": ("linear_proj",),
    "dense_h_to_4h": ("linear_fc1",),
    "dense_4h_to_h": ("linear_fc2",),
}
"""Linears of Megatron-LM's classes before its core."""
_LATENT: dict[str, tuple[str, ...]] = {
    "linear_qb": ("linear_q_up_proj",),
    "linear_kvb": ("linear_kv_up_proj",),
}
"""Latent attention of MindSpeed-LLM. Its linear_qkv joins two projections, which here have an adapter each."""


def target_modules(args: Any) -> list[str] | None:
    """The linears that get an adapter, by the names that they have here."""
    if args.lora_target_modules is None:
        return None
    names: dict[str, tuple[str, ...]] = dict(_OLDER_CLASSES)
    if args.multi_latent_attention or args.multi_head_latent_attention:
        queries = "linear_q_proj" if args.q_lora_rank is None else "linear_q_down_proj"
        names |= _LATENT | {"linear_qkv": (queries, "linear_kv_down_proj")}
    return list(dict.fromkeys(name for given in args.lora_target_modules for name in names.get(given, (given,))))
