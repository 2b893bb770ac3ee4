"""Config fields that follow from --spec, which names a family's file of layers in MindSpeed-LLM, and other flags."""

from collections.abc import Callable
from math import sqrt
from typing import Any

from mapping.derive.hybrid import layers
from mapping.flags.notations import HUNYUAN, has_spec


def rotary_base(args: Any) -> Any:
    """The base of rotary positions: with Hunyuan's spec 10000 x 1000^(d / (d - 2)), with heads of d channels
    ("NTK-aware" scaling by alpha = 1000); without that spec, and where d is unknown or at most 2, --rope-theta, or if
    that is missing --rotary-base."""
    heads, given = args.num_attention_heads, args.rotary_base if args.rope_theta is None else args.rope_theta
    size = args.kv_channels or (args.hidden_size // heads if args.hidden_size and heads and heads > 0 else None)
    if not has_spec(args, HUNYUAN) or not size or size <= 2:
        return given
    return 10000.0 * 1000.0 ** (size / (size - 2))


def depth_scale(args: Any) -> Any:
    """The factor of a sublayer's output in its sum with the residual: --scale-depth over the root of the number of
    layers; --scale-depth as it is if it is missing or 0, or the number of layers is not known or not positive."""
    number = layers(args)
    return args.scale_depth / sqrt(number) if args.scale_depth and number and number > 0 else args.scale_depth


OF_SPECS: dict[str, Callable[[Any], Any]] = {
    "rotary_base": rotary_base,
    "residual": lambda args: None if has_spec(args, HUNYUAN) else depth_scale(args),
    "mlp_residual": lambda args: (
        [1.0, depth_scale(args)] if has_spec(args, HUNYUAN) and args.scale_depth else args.mlp_residual_weights
    ),
    "qk_norm_after_rotary": lambda args: args.qk_layernorm_after_rope or has_spec(args, HUNYUAN),
    "qk_norm_type": lambda args: "per_layer" if has_spec(args, "minimax_spec") else args.qk_norm_type,
}
"""Name of a field -> the function that derives it from the arguments."""
