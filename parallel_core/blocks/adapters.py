"""The linears of a model that have a low-rank adapter, as --lora-target-modules names them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from parallel_core.blocks.adapter import Adapter
from parallel_core.blocks.experts import ExpertLinear
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.linears import FIRST_EXPERT, Kind, with_linears
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Normal


def adapted(block: Kind, config: ModelConfig, path: str) -> Kind:
    """The part `block` of a model, which stands at `path`, with adapters at the linears that --lora-target-modules
    names, and with all its linears frozen; the block itself without LoRA."""
    if not config.lora_config.use_lora:
        return block

    def with_adapter(linear: Linear, path: str) -> Linear:
        return replace(linear, frozen=True, adapter=_adapter_of(linear, config, path))

    return with_linears(block, path, with_adapter)


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
        Normal(config.initial_std),
        linear.dtype,
        linear.partial_over if linear.cut_axis is None else "tp",
        linear.widths,
        linear.unit,
    )


def unlike_experts(linears_of_stage: Mapping[str, Linear], config: ModelConfig) -> Iterator[str]:
    """The paths of experts' linears to which the configuration gives another adapter than to that of the layer's first
    expert."""
    lora, count = config.lora_config, config.moe_config.num_experts or 0
    for first in (path for path, linear in linears_of_stage.items() if isinstance(linear, ExpertLinear)):
        own = lora.adapter_of(first)
        others = (first.replace(FIRST_EXPERT, f"local_experts.{number}") for number in range(1, count))
        yield from (path for path in others if lora.adapter_of(path) != own)
