"""Layers whose residual is n streams, read and written by learnt weights (mHC, Xie et al., 2026).

s sequence, b batch, h hidden, n streams, which lie beside each other: [s, b, n h]. Between two tensor-parallel regions
every rank has all of them, of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.layer import Layer
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch, between_regions
from parallel_core.config import ModelConfig
from parallel_core.initial_values import AnyInitial, Constant, Normal
from parallel_core.numerics.hyper_connections import StreamRule
from parallel_core.operations import Operation, elementwise
from parallel_core.sharding import ShardSpec


@dataclass(frozen=True)
class HyperConnection(Block):
    """The weights by which one block reads the streams and, if `rule.iterations` is above 0, writes them; they are made
    of the results of a linear of all streams of a token. The linear's first weights have the standard deviation `std`;
    all parameters are float32."""

    rule: StreamRule
    hidden_size: int
    """Width of one stream, h."""
    std: float
    partial_over: str | None
    """Kind of the tensor-parallel group where its ranks have different shards of the sequence (see ShardSpec); else
    None."""
    first_scale: float
    """First value of each entry of hc_scale, the factors of the linear's results."""

    @classmethod
    def of(cls, config: ModelConfig, reads_alone: bool = False) -> HyperConnection:
        """The connection of one block by the configuration. reads_alone: that of a head behind layers, which makes one
        stream of all streams and writes none."""
        given = config.hyper_connections
        rule = StreamRule(given.streams, 0 if reads_alone else given.iterations, given.epsilon, config.norm_epsilon)
        return cls(rule, config.hidden_size, config.initial_std, between_regions(config), given.initial_scale)

    @property
    def width(self) -> int:
        """Width of all streams together, n h."""
        return self.rule.streams * self.hidden_size

    def parameters(self) -> dict[str, ParameterSpec]:
        rows, groups = self.rule.width, len(self.rule.groups)
        given: dict[str, tuple[tuple[int, ...], AnyInitial]] = {
            "hc_base": ((rows,), Constant(0.0)),
            "hc_scale": ((groups,), Constant(self.first_scale)),
            "hc_fn.weight": ((rows, self.width), Normal(self.std)),
        }
        return {
            name: ParameterSpec(ShardSpec(shape=shape, partial_over=self.partial_over), initial, "float32")
            for name, (shape, initial) in given.items()
        }

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of the linear alone."""
        return 2.0 * tokens * self.width * self.rule.width

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The memory traffic of making the block's input of the streams and, where the connection writes streams, of
        reading and writing them after the block. The linear's FLOPs are not in it."""
        stream = micro_batch.tokens_between * self.width * micro_batch.residual_item_size
        one = stream // self.rule.streams
        yield elementwise(stream + one, 3 * stream, 2).within("read")
        if self.rule.iterations:
            yield elementwise(2 * stream + one, 4 * stream, 2).within("write")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes kept for the backward, under "": of the streams; and, where the connection writes streams, of the
        block's output and of the float32 weights by which it writes."""
        of_token = self.width * micro_batch.residual_item_size
        if self.rule.iterations:
            of_token += self.hidden_size * micro_batch.item_size + (self.rule.width - self.rule.streams) * FLOAT32
        return {"": micro_batch.tokens_between * of_token}


def stream_head(config: ModelConfig) -> HyperConnection | None:
    """The block behind layers that makes one stream of several; None with an ordinary residual stream."""
    return HyperConnection.of(config, reads_alone=True) if config.hyper_connections.enabled else None


@dataclass(frozen=True)
class HyperConnectedLayer(Layer):
    """A transformer layer on n streams: each of its two blocks has a connection, `attn_mhc` and `mlp_mhc`, through
    which its input is read from the streams, then normed as in any layer, and its output is written to them."""

    attn_mhc: HyperConnection | None = None
    mlp_mhc: HyperConnection | None = None

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> HyperConnectedLayer:
        """The configuration's layer with this global number, from 0."""
        plain, connection = Layer.of(config, number), HyperConnection.of(config)
        return cls(**vars(plain), attn_mhc=connection, mlp_mhc=connection)

    @property
    def residual_width(self) -> int:
        assert self.attn_mhc is not None
        return self.attn_mhc.width

    def _residual_operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """No operations: the connections count the additions to the streams."""
        return iter(())
