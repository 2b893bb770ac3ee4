"""Config fields of hybrid stacks that follow from several arguments. `mapping.derive.fields` says how such functions
read arguments."""

from typing import Any

from parallel_core.config.hybrid import spread


def hybrid_pattern(args: Any) -> str | None:
    """The pattern of a hybrid stack: as given; else, with --num-layers or --encoder-num-layers, spread by the ratios,
    or a state space in each layer if only a flag or spec asks for such a stack; else None, also for ratios that are
    negative or above 1 together."""
    given: str | None = args.hybrid_layer_pattern or args.hybrid_override_pattern
    ratios = args.hybrid_attention_ratio or 0.0, args.hybrid_mlp_ratio or 0.0
    named = any("mamba" in str(part) for part in args.spec or ())
    layers = _given_layers(args)
    if given or not (args.is_hybrid_model or named or any(ratios)) or not isinstance(layers, int) or layers < 1:
        return given
    return spread(layers, *ratios) if min(ratios) >= 0 and sum(ratios) <= 1 else given


def layers(args: Any) -> Any:
    """The number of layers: --num-layers, else --encoder-num-layers, else the length of a pattern, or None."""
    given = _given_layers(args)
    return len(hybrid_pattern(args) or "") or None if given is None else given


def _given_layers(args: Any) -> Any:
    """The number of layers by --num-layers; else by Megatron's other flag for it, --encoder-num-layers; else None."""
    return args.encoder_num_layers if args.num_layers is None else args.num_layers


def mamba_heads(args: Any) -> int | None:
    """The number of heads of a state space: as given; else, in a hybrid stack with MindSpeed-LLM's --mamba-expand, that
    factor x hidden size / head size, rounded down; else None."""
    size, width = args.mamba_head_dim, args.hidden_size
    by_share = "mamba_expand" in args.given and hybrid_pattern(args) is not None
    if args.mamba_num_heads is None and by_share and size and width:
        return int(args.mamba_expand * width // size)
    return args.mamba_num_heads
