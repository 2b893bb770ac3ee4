"""A layer of two halves, the second of which runs beside experts (ScMoE, Cai et al., 2024; LongCat-Flash, 2025)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from parallel_core.blocks.block import join
from parallel_core.blocks.kinds import MIXERS, made
from parallel_core.blocks.layer import AnyLayer, Layer
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.mlp import MLP
from parallel_core.blocks.moe_layer import MoELayer
from parallel_core.blocks.norm import Norm
from parallel_core.config import ModelConfig
from parallel_core.operations import RESIDUAL, Operation, elementwise
from parallel_core.recompute.parts import LayerParts, Part

_READ_TWICE = "first.mlp.linear_fc1"
"""The linear that has the same input as the router."""


@dataclass(frozen=True)
class ShortcutLayer(AnyLayer):
    """second(first(x)) + shortcut(y), where y is the normed input of the first half's dense block: the experts' output
    is added at the very end."""

    first: Layer
    second: Layer
    shortcut: MoELayer

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> "ShortcutLayer":
        """The configuration's layer with this global number, from 0."""

        def half() -> Layer:
            return Layer(Norm.of(config), made(MIXERS, config, number), Norm.of(config), MLP.of(config))

        return cls(half(), half(), MoELayer.of(config))

    @property
    def hidden_size(self) -> int:
        return self.first.hidden_size

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of its parts, and one more addition to the residual stream."""
        yield from super().operations(micro_batch)
        stream = self.input_bytes(micro_batch)
        yield elementwise(3 * stream, 2 * stream, named=RESIDUAL).within("residual")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes that its parts keep for the backward. The first half's dense block and the router have one
        input, which is counted at the router alone, unless that converts it (`computes_in`) or is frozen."""
        kept = super().kept_bytes(micro_batch)
        return {**kept, _READ_TWICE: 0} if self.shortcut.router.keeps_hidden_states else kept

    def parts(self) -> LayerParts:
        """The parts that may be recomputed, of both halves and of the experts; without those of the first half whose
        output or input is the hidden states that its dense block and the router share."""
        halves = {name: getattr(self, name).parts() for name in ("first", "second")}
        parts = [_of_half(name, part) for name, half in halves.items() for part in half.parts]
        parts = [part for part in parts if _READ_TWICE not in (*part.holders, *part.feeds)]
        called = self.shortcut.called or "shortcut"
        of_experts = (part.within("shortcut", called, None) for part in self.shortcut.parts())
        linear_after = {
            join(name, norm): join(name, linear)
            for name, half in halves.items()
            for norm, linear in half.linear_after.items()
        }
        return LayerParts(
            (*parts, *of_experts),
            frozenset(join(name, linear) for name, half in halves.items() for linear in half.collectives),
            {norm: linear for norm, linear in linear_after.items() if linear != _READ_TWICE},
        )


def _of_half(name: str, part: Part) -> Part:
    """A part of a layer as a part of the half `name`, by paths in this layer."""
    runs, holders, feeds = (
        tuple(join(name, path) for path in paths) for paths in (part.runs or (part.path,), part.holders, part.feeds)
    )
    return replace(
        part, path=join(name, part.path), name=join(name, part.name), runs=runs, holders=holders, feeds=feeds,
        aliases=tuple(join(name, alias) for alias in part.aliases), norm=part.norm and join(name, part.norm),
    )  # fmt: skip
