"""The table of the kinds of layers, and the rule by which a layer is of one of them.

A new kind is a block (`AnyLayer`), a `Kind` in this table, and a cell for the block in
`pynative.transformer.layer_kinds`.
"""

from parallel_core.blocks.hyper_connections import HyperConnectedLayer
from parallel_core.blocks.kinds import Kind, made
from parallel_core.blocks.layer import AnyLayer, Layer
from parallel_core.blocks.mamba_layer import MambaLayer
from parallel_core.blocks.shortcut_layer import ShortcutLayer
from parallel_core.config import ModelConfig
from parallel_core.config.hybrid import MAMBA

LAYERS: list[Kind[AnyLayer]] = [
    Kind("shortcut", ShortcutLayer.of, lambda config, number: config.moe_config.moe_shortcut_connected),
    Kind("state space", MambaLayer.of, lambda config, number: config.hybrid.kind(number) == MAMBA),
    Kind("hyper-connected", HyperConnectedLayer.of, lambda config, number: config.hyper_connections.enabled),
    Kind("transformer layer", Layer.of),
]
"""Kinds of layers; a layer is of the first one that applies."""


def layer_of(config: ModelConfig, number: int) -> AnyLayer:
    """The configuration's layer with this global number, from 0; the numbers from `num_layers` on are those of the
    depths of multi-token prediction."""
    return made(LAYERS, config, number)
