"""The table from the blocks of a layer to their cells: mixers, feed-forward blocks, norms, connections. A new kind of
mixer or feed-forward block is registered here, and in `parallel_core.blocks.kinds`.

A cell is made from (block, LayerSettings). The cell of a mixer takes (hidden states, attention mask, document starts)
and, if layers share something, that; the cell of a feed-forward block takes hidden states, and the tokens' ids if it
reads them. Both return (output, bias still to be added or None).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mindspore import nn

from parallel_core import blocks
from parallel_core.blocks.latent_attention import SparseLatentAttention
from parallel_core.config import ModelConfig
from parallel_core.recompute.plan import CellRecompute
from pynative.moe.moe_layer import MoELayer
from pynative.tensor_parallel.mlp import ParallelMLP
from pynative.transformer.attention import ParallelAttention
from pynative.transformer.compressed_attention import CompressedAttention
from pynative.transformer.cross_layer_attention import CrossLayerAttention
from pynative.transformer.gated_delta_net import GatedDeltaNet
from pynative.transformer.lightning_attention import LightningAttention
from pynative.transformer.mamba import MambaMixer
from pynative.transformer.multi_latent_attention import MLASelfAttention
from pynative.transformer.norm import norm_cell
from pynative.transformer.side_by_side import AttentionBesideStateSpace
from pynative.transformer.sparse_attention import SparseMLASelfAttention
from pynative.transformer.stream_connections import HyperConnection


@dataclass(frozen=True)
class LayerSettings:
    """The arguments of a cell in a layer, besides its block."""

    config: ModelConfig
    layer_number: int
    """Global, from 1."""
    attn_mask_type: Enum
    recomputed: CellRecompute

    @property
    def of_layer(self) -> tuple[ModelConfig, int, Enum]:
        """(Configuration, layer number, mask type): Megatron's first arguments of an attention."""
        return self.config, self.layer_number, self.attn_mask_type

    def within(self, module: str) -> LayerSettings:
        """The settings of the inner cell `module`: the same, with `recomputed` limited to the parts of that cell."""
        return replace(self, recomputed=self.recomputed.within(module))


CELLS: dict[type[blocks.Block], Callable[[Any, LayerSettings], nn.Cell]] = {
    blocks.Attention: lambda block, given: ParallelAttention(*given.of_layer, block, given.recomputed),
    blocks.AttentionBesideStateSpace: lambda block, given: AttentionBesideStateSpace(
        *given.of_layer, block, given.recomputed
    ),
    blocks.CompressedAttention: lambda block, given: CompressedAttention(
        given.config, given.layer_number, block, given.recomputed
    ),
    blocks.CrossLayerAttention: lambda block, given: CrossLayerAttention(*given.of_layer, block, given.recomputed),
    blocks.GatedDeltaNet: lambda block, given: GatedDeltaNet(given.config, given.layer_number, block, given.recomputed),
    blocks.HyperConnection: lambda block, given: HyperConnection(block),
    blocks.LatentAttention: lambda block, given: MLASelfAttention(*given.of_layer, block, given.recomputed),
    SparseLatentAttention: lambda block, given: SparseMLASelfAttention(*given.of_layer, block, given.recomputed),
    blocks.LightningAttention: lambda block, given: LightningAttention(
        given.config, given.layer_number, block, given.recomputed
    ),
    blocks.MambaMixer: lambda block, given: MambaMixer(given.config, given.layer_number, block, given.recomputed),
    blocks.MLP: lambda block, given: ParallelMLP(given.config, block, given.recomputed),
    blocks.MoELayer: lambda block, given: MoELayer(given.config, block, given.layer_number, given.recomputed),
    blocks.NormOfAllHeads: lambda block, given: norm_cell(block, given.config),
    blocks.Norm: lambda block, given: norm_cell(block, given.config),
}


def cell_of(block: blocks.Block, settings: LayerSettings) -> nn.Cell:
    """The cell of a block, by the table CELLS. Raises KeyError for a class that is not in it."""
    return CELLS[type(block)](block, settings)
