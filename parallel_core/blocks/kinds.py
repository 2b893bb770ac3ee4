"""The tables of the kinds of sublayers, and the rule by which a layer has one of them.

A new kind is a block (`Sublayer`), a `Kind` in one of these tables, and a cell for the block in
`pynative.transformer.kinds`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from parallel_core.blocks.attention import Attention
from parallel_core.blocks.compressed_attention import CompressedAttention
from parallel_core.blocks.cross_layer_attention import CrossLayerAttention
from parallel_core.blocks.gated_delta_net import GatedDeltaNet
from parallel_core.blocks.latent_attention import LatentAttention, SparseLatentAttention
from parallel_core.blocks.lightning_attention import LightningAttention
from parallel_core.blocks.mlp import MLP
from parallel_core.blocks.moe_layer import MoELayer
from parallel_core.blocks.side_by_side import AttentionBesideStateSpace
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.config import ModelConfig
from parallel_core.config.hybrid import ATTENTION as ATTENTION_ALONE
from parallel_core.config.hybrid import EXPERTS as EXPERTS_ALONE
from parallel_core.config.hybrid import MLP as MLP_ALONE
from parallel_core.config.hybrid import SIDE_BY_SIDE

Made = TypeVar("Made")


@dataclass(frozen=True)
class Kind(Generic[Made]):
    """One kind of sublayer, or of layer, in a table of which a layer takes the first that `applies`. name: in words,
    such as "dense"."""

    name: str
    of: Callable[[ModelConfig, int], Made]
    """Makes the block from the configuration and the layer's global number, from 0; None for a layer without such a
    sublayer."""
    applies: Callable[[ModelConfig, int], bool] = lambda config, number: True
    """Whether the kind is possible for the configuration's layer with this global number; the first in a table is
    taken."""


def _none(config: ModelConfig, number: int) -> None:
    """No block, for a layer of a hybrid stack without such a sublayer."""


MIXERS: list[Kind[Sublayer | None]] = [
    Kind("none", _none, lambda config, number: config.hybrid.kind(number) in (MLP_ALONE, EXPERTS_ALONE)),
    Kind(
        "attention beside a state space",
        AttentionBesideStateSpace.of,
        lambda config, number: config.hybrid.kind(number) == SIDE_BY_SIDE,
    ),
    Kind(
        "gated delta net",
        GatedDeltaNet.of,
        lambda config, number: config.has_delta_nets and config.linear_attention.is_linear(number),
    ),
    Kind("compressed attention", CompressedAttention.of, lambda config, number: config.compressed_attention.enabled),
    Kind(
        "lightning attention",
        LightningAttention.of,
        lambda config, number: config.has_lightning_attention and config.linear_attention.is_linear(number),
    ),
    Kind(
        "sparse latent attention",
        SparseLatentAttention.of,
        lambda config, number: config.multi_latent_attention.enabled and config.sparse_attention.enabled,
    ),
    Kind("latent attention", LatentAttention.of, lambda config, number: config.multi_latent_attention.enabled),
    Kind("cross-layer attention", CrossLayerAttention.of, lambda config, number: config.cla_share_factor > 1),
    Kind("attention", Attention.of),
]
"""Kinds of mixers; a layer has the first one that applies."""

FEED_FORWARDS: list[Kind[Sublayer | None]] = [
    Kind("none", _none, lambda config, number: config.hybrid.kind(number) == ATTENTION_ALONE),
    Kind(
        "experts",
        MoELayer.of,
        lambda config, number: config.moe_config.has_experts(number),
    ),
    Kind("dense", lambda config, number: MLP.of(config)),
]


def made(kinds: Sequence[Kind[Made]], config: ModelConfig, number: int) -> Made:
    """The block of the first kind that applies to the layer with this global number, from 0; None if that kind has no
    block. Layers of multi-token prediction, behind the decoder's, are of the kind of its last. Raises StopIteration if
    no kind applies."""
    like = min(number, config.num_layers - 1)
    return next(kind for kind in kinds if kind.applies(config, like)).of(config, number)
