"""Config fields of stacks of one part a layer that follow from several arguments. How such functions read arguments:
`mapping.derive.fields`."""

from typing import Any

from parallel_core.config.hybrid import spread


def hybrid_pattern(args: Any) -> str | None:
    """The pattern of a hybrid stack as it is given, or spread by ratios; without either all layers are state spaces, if
    a flag or spec says so."""
    given: str | None = args.hybrid_layer_pattern or args.hybrid_override_pattern
    ratios = args.hybrid_attention_ratio or 0.0, args.hybrid_mlp_ratio or 0.0
    named = any("mamba" in str(part) for part in args.spec or ())
    layers = args.num_layers
    if given or not (args.is_hybrid_model or named or any(ratios)) or not isinstance(layers, int) or layers < 1:
        return given
    return spread(layers, *ratios) if min(ratios) >= 0 and sum(ratios) <= 1 else given


def layers(args: Any) -> Any:
    """The number of layers, which Megatron has two names for, or as many as a pattern has letters."""
    numbers = (args.num_layers, args.encoder_num_layers)
    return next((number for number in numbers if number is not None), len(hybrid_pattern(args) or "") or None)


def mamba_heads(args: Any) -> int | None:
    """The number of state-space heads, given itself or by MindSpeed-LLM's share of the hidden size."""
    size, width = args.mamba_head_dim, args.hidden_size
    by_share = "mamba_expand" in args.given and hybrid_pattern(args) is not None
    if args.mamba_num_heads is None and by_share and size and width:
        return int(args.mamba_expand * width // size)
    return args.mamba_num_heads
