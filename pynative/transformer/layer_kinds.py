"""The table from a layer's block to its cell: a new kind is registered here, and in
`parallel_core.blocks.layer_kinds`."""

from collections.abc import Callable
from typing import Any

from mindspore import nn

from parallel_core import blocks
from pynative.transformer.hyper_connections import HyperConnectedTransformerLayer
from pynative.transformer.kinds import LayerSettings
from pynative.transformer.layer import ParallelTransformerLayer
from pynative.transformer.shortcut_layer import ShortcutTransformerLayer

LAYERS: dict[type[blocks.Block], Callable[[Any, LayerSettings], nn.Cell]] = {
    blocks.ShortcutLayer: ShortcutTransformerLayer,
    blocks.HyperConnectedLayer: lambda block, given: HyperConnectedTransformerLayer(
        *given.of_layer, block, given.recomputed
    ),
    blocks.MambaLayer: lambda block, given: ParallelTransformerLayer(*given.of_layer, block, given.recomputed),
    blocks.Layer: lambda block, given: ParallelTransformerLayer(*given.of_layer, block, given.recomputed),
}
"""The cell's constructor by the block of a kind of layer; the cell takes (hidden states, attention mask, document
starts, ...)."""
