"""The base of every block of a model: a value that gives its parameters, FLOPs, messages and the bytes that it
keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar

from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.initial_values import AnyInitial
from parallel_core.messages import Message
from parallel_core.operations import PRODUCTS, Operation, Work
from parallel_core.sharding import ShardSpec

Kind = TypeVar("Kind")


class ParameterSpec(NamedTuple):
    """A parameter before it exists: cuts, first values, type."""

    shard: ShardSpec
    """The parameter's global shape and how it is cut."""
    initial: AnyInitial
    """The recipe of the parameter's first values."""
    dtype: str
    """Name of the type in which the model keeps it, as "bfloat16"."""


def join(module: str, name: str) -> str:
    """The path in the model of the part `name` of `module`; either may be ""."""
    return ".".join(filter(None, (module, name)))


def blocks_within(block: Block, kind: type[Kind]) -> Iterator[Kind]:
    """The blocks of a kind that a block consists of, at any depth, in the model's order; not the block itself."""
    for part in block.submodules().values():
        if isinstance(part, kind):
            yield part
        yield from blocks_within(part, kind)


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a block's class; kept, since a search asks for them millions of times."""
    return tuple(entry.name for entry in fields(kind))


class Block:
    """A part of a model, made from the configuration alone, that gives its parameters, FLOPs, messages and the bytes
    that it keeps.

    A subclass is a frozen dataclass. Fields that are blocks are its submodules, under Megatron's names and in the order
    of the model; methods that it does not override sum over them.
    """

    @property
    def parameters_alone(self) -> ParametersOf:
        """A block with this block's parameters and nothing else: its operations, messages and kept bytes are counted by
        another block, which uses it."""
        return ParametersOf(self)

    def submodules(self) -> dict[str, Block]:
        """Name of a field -> the block in it, for the blocks that this one consists of."""
        kind: Any = type(self)
        return {name: value for name in _names_of(kind) if isinstance(value := getattr(self, name), Block)}

    def at(self, path: str) -> Block:
        """The block at a path within this one, as "self_attention.linear_qkv". Raises KeyError where there is none."""
        first, _, rest = path.partition(".")
        inner = self.submodules()[first]
        return inner.at(rest) if rest else inner

    def parameters(self) -> dict[str, ParameterSpec]:
        """Path within the block -> parameter, in the model's order."""
        inner = {name: block.parameters() for name, block in self.submodules().items()}
        return {join(module, name): spec for module, specs in inner.items() for name, spec in specs.items()}

    def untrained(self) -> dict[str, ParameterSpec]:
        """Path within the block -> tensor that has no gradient but is kept and saved with the parameters."""
        inner = {name: block.untrained() for name, block in self.submodules().items()}
        return {join(module, name): spec for module, specs in inner.items() for name, spec in specs.items()}

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """Floating-point operations of the matrix products of `tokens` tokens in the forward, over all tensor-parallel
        ranks.

        A multiply-add counts as two. Tokens attend to sequences of `seq_length`.
        """
        return sum(block.forward_flops(tokens, seq_length) for block in self.submodules().values())

    def frozen_flops(self, tokens: int) -> float:
        """Floating-point operations, of those that `forward_flops` counts, of products with weights that are not
        trained: for these the backward computes one gradient instead of two."""
        return sum(block.frozen_flops(tokens) for block in self.submodules().values())

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of one rank's device in one micro-batch, forward and backward. FLOPs of the block itself that
        it does not describe as operations are counted as products, cut evenly over the tensor-parallel ranks."""
        tokens, length = micro_batch.tokens, micro_batch.seq_length
        own = self.forward_flops(tokens, length)
        for name, block in self.submodules().items():
            own -= block.forward_flops(tokens, length)
            for one in block.operations(micro_batch):
                yield one.within(name)
        if own > 1e-6 * tokens:
            work = Work(own / micro_batch.tensor, 0.0, 1)
            yield Operation(PRODUCTS, work, work, work)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages that each rank sends in one micro-batch, forward and backward; named by path within the
        block."""
        for name, block in self.submodules().items():
            for message in block.messages(micro_batch):
                yield message.within(name)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path of a submodule ("": the block itself) -> bytes of one micro-batch that a rank keeps from its forward for
        its backward.

        Every tensor counts once, at the operator whose input it is. Counted are operators that keep their inputs (all
        of the host's, the fused ones of an Ascend), not those that MindSpore composes; parameters and what all layers
        share (angles, an explicit mask) are not.
        """
        inner = {name: block.kept_bytes(micro_batch) for name, block in self.submodules().items()}
        return {join(module, name): size for module, sizes in inner.items() for name, size in sizes.items()}


@dataclass(frozen=True)
class ParametersOf(Block):
    """A block that has the parameters of the block `used` and nothing else. Another block runs `used`, and counts its
    operations, messages and kept bytes."""

    used: Block

    def submodules(self) -> dict[str, Block]:
        return {}

    def parameters(self) -> dict[str, ParameterSpec]:
        return self.used.parameters()
