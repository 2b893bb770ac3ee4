"""The linears of a model that have a low-rank adapter, as --lora-target-modules names them."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from parallel_core.blocks.adapter import Adapter
from parallel_core.blocks.block import Block, join
from parallel_core.blocks.experts import ExpertLinear, Experts
from parallel_core.blocks.layer_stack import LayerStack
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.multi_token_prediction import MultiTokenPrediction
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Normal

Kind = TypeVar("Kind", bound=Block)

_FIRST_EXPERT = "local_experts.0"
"""Experts of a layer are alike: the first one's name speaks for all."""


def adapted(block: Kind, config: ModelConfig, path: str) -> Kind:
    """A part of a model at a path, with the adapters that the configuration names; beside them all else is frozen."""
    if not config.lora_config.use_lora:
        return block
    if isinstance(block, Linear):
        return replace(block, frozen=True, adapter=_adapter_of(block, config, path))
    if isinstance(block, Experts):
        return replace(block, expert=adapted(block.expert, config, join(path, _FIRST_EXPERT)))
    if isinstance(block, LayerStack):
        return replace(block, layers=tuple((n, adapted(one, config, join(path, str(n)))) for n, one in block.layers))
    if isinstance(block, MultiTokenPrediction):
        layers = (adapted(one, config, join(path, f"layers.{depth}")) for depth, one in enumerate(block.layers))
        return replace(block, layers=tuple(layers))
    values: dict[str, Any] = {entry.name: getattr(block, entry.name) for entry in fields(block)}  # type: ignore[arg-type]
    parts = {name: value for name, value in values.items() if isinstance(value, Block)}
    return replace(block, **{name: adapted(part, config, join(path, name)) for name, part in parts.items()})  # type: ignore[type-var]


def _adapter_of(linear: Linear, config: ModelConfig, path: str) -> Adapter | None:
    lora = config.lora_config
    sizes = lora.adapter_of(path)
    return sizes and Adapter(
        linear.input_size,
        linear.output_size,
        linear.cut_axis,
        linear.parts,
        *sizes,
        lora.lora_dropout,
        Normal(config.init_method_std),
        linear.dtype,
        linear.partial_over if linear.cut_axis is None else "tp",
        linear.widths,
    )


def unlike_experts(linears_of_stage: Mapping[str, Linear], config: ModelConfig) -> Iterator[str]:
    """Paths of linears of experts that the configuration gives another adapter than the first expert of the layer."""
    lora, count = config.lora_config, config.moe_config.num_experts or 0
    for first in (path for path, linear in linears_of_stage.items() if isinstance(linear, ExpertLinear)):
        others = (first.replace(_FIRST_EXPERT, f"local_experts.{number}") for number in range(1, count))
        yield from (path for path in others if lora.adapter_of(path) != lora.adapter_of(first))


def linears(block: Block, path: str) -> Iterator[tuple[str, Linear]]:
    """The linears of a part of a model, by their paths."""
    if isinstance(block, Linear):
        yield path, block
    elif isinstance(block, Experts):
        yield from linears(block.expert, join(path, _FIRST_EXPERT))
    else:
        for name, part in block.submodules().items():
            yield from linears(part, join(path, name))
