"""A cell says where a part of it runs that may run again, or keep in host memory what it saves (`run_part`).

Which parts do is said when a cell is built: it has a `CellRecompute` as `recomputed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Protocol

from mindspore import Parameter

from parallel_core.config import ModelConfig
from parallel_core.recompute import Again, CellRecompute
from pynative.tensor_parallel.offload import device_has_own_memory, offloading
from pynative.tensor_parallel.recompute import (
    checkpoint,
    checkpoint_without_output,
    checkpoint_without_outputs,
    drop_output,
)

NOTHING = CellRecompute()
"""All parts run once."""


@dataclass(frozen=True)
class LayerSettings:
    """What a cell of a layer is built with, beside its block."""

    config: ModelConfig
    layer_number: int
    """Global, from 1."""
    attn_mask_type: Enum
    recomputed: CellRecompute = NOTHING

    @property
    def of_layer(self) -> tuple[ModelConfig, int, Enum]:
        """Megatron's arguments of what a layer consists of."""
        return self.config, self.layer_number, self.attn_mask_type

    def within(self, module: str) -> LayerSettings:
        """Of a cell inside."""
        return replace(self, recomputed=self.recomputed.within(module))


class HasParts(Protocol):
    """A cell of which parts may run again."""

    recomputed: CellRecompute

    def get_parameters(self) -> Any: ...


_WAYS: dict[Again, Callable[..., Any]] = {
    Again.WHOLE: lambda function, *args: checkpoint(function, False, *args),
    Again.WITHOUT_OUTPUT: checkpoint_without_output,
    Again.OUTPUTS: checkpoint_without_outputs,
    Again.OUTPUT: drop_output,
}


def run_part(cell: HasParts, path: str, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`: the part of the cell at `path`, or the cell itself, as it was asked to run."""
    asked = cell.recomputed
    way = asked.ways.get(path)
    run = function if way is None else partial(_WAYS[way], function)
    if path not in asked.offloaded or not device_has_own_memory():
        return run(*args)
    weights: list[Parameter] = list(cell.get_parameters())
    with offloading(weights, asked.smallest_offloaded):
        return run(*args)


def keep_collectives(cell: Any) -> None:
    """Have those of a cell's linears keep what their collectives gave that are not to run them again."""
    for name in cell.recomputed.kept_collectives:
        linear = getattr(cell, name)
        linear.boundary = linear.boundary.keeping()
