"""Config fields of attention's variants that follow from several arguments, Megatron's and MindSpeed-LLM's. See
`mapping.derive.fields`."""

from collections.abc import Callable
from typing import Any


def indexer_loss_coefficient(args: Any) -> Any:
    own = args.dsa_indexer_loss_coeff
    return args.indexer_loss_coeff if args.enable_dsa_indexer and own is None else own


def indexer_offset(args: Any) -> Any:
    """The number of the first layers that have an indexer in any case, by Megatron's flag, else by MindSpeed-LLM's; the
    default is 2 with MindSpeed-LLM's --enable-dsa-indexer, else 0."""
    own = args.dsa_indexer_skip_topk_offset
    own = args.index_skip_topk_offset if own is None else own
    return (2 if args.enable_dsa_indexer else 0) if own is None else own


def attention_variant(args: Any) -> str | None:
    """The variant of attention: "dsa" with MindSpeed-LLM's --enable-dsa-indexer; else the one named by
    --experimental-attention-variant ("gdn" is gated_delta_net); else gated_delta_net with --full-attention-interval, or
    None."""
    if args.enable_dsa_indexer:
        return "dsa"
    named = args.experimental_attention_variant or ("gdn" if args.full_attention_interval else None)
    return "gated_delta_net" if named == "gdn" else named


OF_SPARSE_ATTENTION: dict[str, Callable[[Any], Any]] = {
    "variant": attention_variant,
    "dsa_indexer_loss_coeff": indexer_loss_coefficient,
    "dsa_indexer_skip_topk_offset": indexer_offset,
    "dsa_indexer_use_sparse_loss": lambda args: args.dsa_indexer_use_sparse_loss or args.enable_dsa_indexer,
}
