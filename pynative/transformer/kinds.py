"""The cell of each block: a new kind of sublayer is registered here, and in `parallel_core.blocks.kinds`.

A cell is made by (block, LayerSettings). A mixer's takes (hidden states, attention mask, document starts), a
feed-forward block's hidden states; both give (output, bias still to be added).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import nn

from parallel_core import blocks
from pynative.moe.moe_layer import MoELayer
from pynative.tensor_parallel.mlp import ParallelMLP
from pynative.tensor_parallel.run_part import LayerSettings
from pynative.transformer.attention import ParallelAttention
from pynative.transformer.multi_latent_attention import MLASelfAttention
from pynative.transformer.norm import norm_cell

CELLS: dict[type[blocks.Block], Callable[[Any, LayerSettings], nn.Cell]] = {
    blocks.Attention: ParallelAttention.of,
    blocks.LatentAttention: MLASelfAttention.of,
    blocks.MLP: ParallelMLP.of,
    blocks.MoELayer: MoELayer.of,
    blocks.Norm: lambda block, settings: norm_cell(block, settings.config),
}


def cell_of(block: blocks.Block, settings: LayerSettings) -> nn.Cell:
    """The cell of a block."""
    return CELLS[type(block)](block, settings)
