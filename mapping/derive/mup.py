"""Factors of mu-P (Yang et al., "Tensor Programs V", 2022) by Megatron's flags."""

from math import sqrt
from typing import Any


def width_multiplier(args: Any) -> Any:
    """The hidden size divided by --mup-base-hidden-size, the hidden size of the model whose rates are given; 1 without
    --use-mup, without one of the two sizes, or for a hidden size of 0; a base that is not positive is returned
    itself."""
    base = args.mup_base_hidden_size
    if not args.use_mup or base is None or not args.hidden_size:
        return 1.0
    return args.hidden_size / base if base > 0 else base


def scale_of_scores(args: Any) -> float | None:
    """Mu-P's factor of attention's scores: sqrt(base head size) / head size ^ power; base and power are 1 by default.
    0 for a negative base, and where 1 / head size ^ power is too large for a float. None without --use-mup, for
    latent attention, and where the head size is not known or not positive."""
    if not args.use_mup or args.multi_latent_attention or args.multi_head_latent_attention:
        return None
    heads = args.num_attention_heads
    size = args.kv_channels or (args.hidden_size // heads if args.hidden_size and heads else None)
    if not size or size < 0:
        return None
    base = 1.0 if args.mup_base_head_dim is None else args.mup_base_head_dim
    power = 1.0 if args.mup_attn_scale_power is None else args.mup_attn_scale_power
    try:
        return sqrt(max(base, 0.0)) * float(size) ** -float(power)
    except OverflowError:
        return 0.0  # as any scale that is no number: a rule refuses it


def scale_of_logits(args: Any) -> float | None:
    """Mu-P's factor of the logits: --mup-output-mult, but 1 / width multiplier if that flag is 1, or missing, and the
    multiplier is positive; None without --use-mup."""
    if not args.use_mup:
        return None
    width = width_multiplier(args)
    return args.mup_output_mult if args.mup_output_mult not in (None, 1.0) or width <= 0 else 1.0 / width


def scale_of_embedding(args: Any) -> float | None:
    return args.mup_embedding_mult if args.use_mup else None
