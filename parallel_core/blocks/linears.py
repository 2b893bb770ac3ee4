"""The linears of a part of a model, by their paths: listed, or changed."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

from parallel_core.blocks.block import Block, join
from parallel_core.blocks.experts import Experts
from parallel_core.blocks.layer_stack import LayerStack
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.multi_token_prediction import MultiTokenPrediction

Kind = TypeVar("Kind", bound=Block)

FIRST_EXPERT = "local_experts.0"
"""Name of a layer's first expert, which stands for all of them, since they are alike."""


def linears(block: Block, path: str) -> Iterator[tuple[str, Linear]]:
    """The paths and the `Linear` blocks of a part of a model (itself, or among its submodules at any depth), in the
    model's order; of experts the first one's."""
    if isinstance(block, Linear):
        yield path, block
    elif isinstance(block, Experts):
        yield from linears(block.expert, join(path, FIRST_EXPERT))
    else:
        for name, part in block.submodules().items():
            yield from linears(part, join(path, name))


def with_linears(block: Kind, path: str, change: Callable[[Linear, str], Linear]) -> Kind:
    """A copy of the part `block` of a model, which stands at `path`, with each linear that `linears` lists for it
    replaced by change(linear, its path); a layer's experts all get what the first one does."""
    if isinstance(block, Linear):
        return change(block, path)  # type: ignore[return-value]
    if isinstance(block, Experts):
        return replace(block, expert=with_linears(block.expert, join(path, FIRST_EXPERT), change))
    if isinstance(block, LayerStack):
        layers = ((n, with_linears(one, join(path, str(n)), change)) for n, one in block.layers)
        return replace(block, layers=tuple(layers))
    if isinstance(block, MultiTokenPrediction):
        further = (with_linears(one, join(path, f"layers.{depth}"), change) for depth, one in enumerate(block.layers))
        return replace(block, layers=tuple(further))
    values: dict[str, Any] = {entry.name: getattr(block, entry.name) for entry in fields(block)}  # type: ignore[arg-type]
    parts = {name: value for name, value in values.items() if isinstance(value, Block)}
    return replace(block, **{name: with_linears(part, join(path, name), change) for name, part in parts.items()})  # type: ignore[type-var]
