"""The `Linear` blocks whose products have operands of 8 bits with --fp8-simulate, as in Transformer Engine: those of
the decoder and of multi-token prediction, but for each `GroupedLinear` and layers that --first-last-layers-bf16 leaves
out; not the embedding, the router and the output layer."""

import re
from dataclasses import replace

from parallel_core.blocks.compressed_attention import GroupedLinear
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.linears import Kind, with_linears
from parallel_core.config import ModelConfig

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")


def rounded_to_8_bits(block: Kind, config: ModelConfig, path: str) -> Kind:
    """The part `block` of a model, which stands at `path`, with the configuration's recipe of 8 bits in each `Linear`,
    but for a `GroupedLinear` and those of decoder layers that --first-last-layers-bf16 leaves out; the block itself
    without a recipe. Layers of multi-token prediction are not left out, as in Megatron."""
    recipe = config.float8.recipe
    if recipe is None:
        return block

    def with_recipe(linear: Linear, path: str) -> Linear:
        layer = _LAYER.match(path)
        rounds = config.float8.rounds(layer and int(layer[1]), config.num_layers)
        return replace(linear, recipe=recipe) if rounds and not isinstance(linear, GroupedLinear) else linear

    return with_linears(block, path, with_recipe)
