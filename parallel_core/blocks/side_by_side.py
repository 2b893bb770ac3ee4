"""Attention and a state space that read the same input (Falcon-H1, 2025), in the place of attention alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from parallel_core.blocks.attention import Attention
from parallel_core.blocks.block import join
from parallel_core.blocks.mamba import MambaMixer
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.operations import Operation, elementwise
from parallel_core.recompute.parts import Part

if TYPE_CHECKING:
    from parallel_core.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class AttentionBesideStateSpace(Attention):
    """Attention beside a state space: weights[0] x attention(x) + weights[1] x mixer(x)."""

    mixer: MambaMixer
    weights: tuple[float, float] = (1.0, 1.0)

    collectives = (*Attention.collectives, *(join("mixer", name) for name in MambaMixer.collectives))

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> AttentionBesideStateSpace:
        """The block of the configuration's layer with this global number, from 0."""
        attention = Attention.of(config, number)
        first, second = config.hybrid.side_by_side_weights or (1.0, 1.0)
        return cls(
            **{one.name: getattr(attention, one.name) for one in fields(attention)},
            mixer=MambaMixer.of(config, number),
            weights=(first, second),
        )

    @property
    def first_linears(self) -> tuple[str, ...]:
        return (*super().first_linears, *(join("mixer", name) for name in self.mixer.first_linears))

    def parts(self) -> tuple[Part, ...]:
        """The parts that may be recomputed: the whole, and the parts inside both; not attention, or the state space, as
        a whole by itself."""
        whole, *of_attention = super().parts()
        of_mixer = (part.within("mixer", "mixer", None) for part in self.mixer.parts() if part.path)
        return replace(whole, holders=self.first_linears), *of_attention, *of_mixer

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of its parts, and the weighted sum of both results."""
        yield from super().operations(micro_batch)
        result = micro_batch.tokens_between * self.linear_qkv.input_size * micro_batch.item_size
        weighed = 2 * sum(weight != 1.0 for weight in self.weights)
        yield elementwise((3 + weighed) * result, (2 + weighed) * result).within("sum")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes that its parts keep for the backward. Attention's and the state space's first linear have one
        input, which counts once, at the first of them that needs it."""
        kept = super().kept_bytes(micro_batch)
        first, second = self.first_linears
        return {**kept, second: 0} if kept[first] else kept
