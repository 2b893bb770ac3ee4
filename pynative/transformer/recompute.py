"""What the plan says is computed again, or offloaded, applied to the cells of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mindspore import Tensor, nn

from parallel_core.recompute import OUTPUT_DROPPED, UP_PROJECTIONS, ChunkRecompute, LayerRecompute
from pynative.tensor_parallel.recompute import (
    checkpoint,
    checkpoint_without_output,
    checkpoint_without_outputs,
    drop_output,
)
from pynative.transformer.offload import device_has_own_memory, offload

METHODS = {
    "input_layernorm": ("input_layernorm", "construct"),
    "self_attention": ("self_attention", "construct"),
    "self_attention.core_attention": ("self_attention.core_attention", "construct"),
    "pre_mlp_layernorm": ("pre_mlp_layernorm", "construct"),
    "mlp": ("mlp", "construct"),
    "mlp.linear_fc1": ("mlp", "expand"),
    "mlp.activation": ("mlp", "activate"),
    "moe": ("mlp", "construct"),
    "moe.experts.activation": ("mlp.experts", "activate"),
    "moe.shared_experts": ("mlp.shared_experts", "construct"),
    UP_PROJECTIONS: ("self_attention", "project_up"),
}
"""Module -> the cell of a layer, and its method, that is run again. What the first linear of a feed-forward block gives
is kept by the activation alone, so the two are run again together."""


def apply_to_layer(layer: nn.Cell, asked: LayerRecompute, smallest_offloaded: int) -> None:
    """Have modules of a layer computed again, or what they keep offloaded where the device has memory of its own."""
    for module in asked.modules:
        path, name = METHODS[module]
        cell = _inner(layer, path)
        setattr(cell, name, partial(_again(module, asked), getattr(cell, name)))
    for path in asked.kept_collectives:
        linear = _inner(layer, path)
        linear.boundary = linear.boundary.keeping()
    if device_has_own_memory():
        for path in asked.offloaded:
            offload(_inner(layer, path), smallest_offloaded)


def _again(module: str, asked: LayerRecompute) -> Callable[..., Any]:
    if module == UP_PROJECTIONS:
        return checkpoint_without_outputs
    if module in OUTPUT_DROPPED:
        return drop_output
    return checkpoint_without_output if module in asked.without_output else partial(_checkpoint_here, False)


def _inner(cell: nn.Cell, path: str) -> Any:
    for name in filter(None, path.split(".")):
        cell = getattr(cell, name)
    return cell


def _checkpoint_here(slices_inputs: bool, function: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(function, slices_inputs, *args)


def _through(layers: Sequence[nn.Cell], hidden_states: Tensor, *context: Any) -> Tensor:
    """Each layer on the result of the one before."""
    for layer in layers:
        hidden_states = layer(hidden_states, *context)
    return hidden_states


def computed_again(function: Callable[..., Any], plan: ChunkRecompute) -> Callable[..., Any]:
    """The function, which is run again whole in the backward pass."""
    return partial(_checkpoint_here, plan.slices_inputs, function)


def runs_of(layers: Sequence[nn.Cell], plan: ChunkRecompute) -> tuple[Callable[..., Tensor], ...]:
    """The layers as functions (hidden states, *context) -> hidden states; a group that is computed again is one."""
    for layer, asked in zip(layers, plan.layers, strict=True):
        apply_to_layer(layer, asked, plan.smallest_offloaded)
    return tuple(_run(layers[group.start : group.stop], plan.layers[group.start].full, plan) for group in plan.groups())


def _run(layers: Sequence[nn.Cell], recomputed: bool, plan: ChunkRecompute) -> Callable[..., Tensor]:
    through = partial(_through, layers)
    return computed_again(through, plan) if recomputed else through
