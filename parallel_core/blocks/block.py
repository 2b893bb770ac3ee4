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
    """A parameter before it exists: shape and cuts, first values, type."""

    shard: ShardSpec
    """The parameter's global shape and how it is cut."""
    initial: AnyInitial
    """The recipe of the parameter's first values."""
    dtype: str
    """Name of the type in which the model keeps it, as "bfloat16"."""


def join(module: str, name: str) -> str:
    """The path of the part `name` of the block at the path `module`: both with a dot between, or the other one where
    one is ""."""
    return ".".join(filter(None, (module, name)))


def blocks_within(block: Block, kind: type[Kind]) -> Iterator[Kind]:
    """The blocks of the class `kind` or a subclass among a block's submodules and theirs, at any depth, in order; not
    the block itself. A layer's experts are one block, `Experts`, with one `Expert`."""
    for part in block.submodules().values():
        if isinstance(part, kind):
            yield part
        yield from blocks_within(part, kind)


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a block's class; kept, since a search asks for them millions of times."""
    return tuple(entry.name for entry in fields(kind))


class Block:
    """A part of a model, described without tensors, that gives its parameters, FLOPs, operations, messages and the
    bytes that it keeps.

    A block of a model is a frozen dataclass. Unless its class overrides the methods here, its fields that are blocks
    are its submodules, and its figures are those of its submodules together.
    """

    @property
    def parameters_alone(self) -> ParametersOf:
        """A block with this block's parameters and nothing else: without FLOPs, operations, messages and kept bytes."""
        return ParametersOf(self)

    def submodules(self) -> dict[str, Block]:
        """Name -> block, for the blocks that this one consists of: by default those that are fields, in their order."""
        kind: Any = type(self)
        return {name: value for name in _names_of(kind) if isinstance(value := getattr(self, name), Block)}

    def at(self, path: str) -> Block:
        """The block at a path within this one: names of `submodules`, none with a dot in it, joined by dots, such as
        "self_attention.linear_qkv"; a dot at the end changes nothing. Raises KeyError for an unknown name, and for
        ""."""
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
        """Floating-point operations of `tokens` tokens in the forward, mainly of matrix products.

        A multiply-add counts as two. Those that tensor-parallel ranks divide or repeat count once. Tokens attend to
        sequences of `seq_length`.
        """
        return sum(block.forward_flops(tokens, seq_length) for block in self.submodules().values())

    def frozen_flops(self, tokens: int) -> float:
        """Floating-point operations, of those that `forward_flops` counts, of products with the weights of linears and
        routers that are `frozen`: for these the backward computes no gradient of the weight."""
        return sum(block.frozen_flops(tokens) for block in self.submodules().values())

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of one rank's device in one micro-batch, forward and backward. By default those of the
        submodules; and, where `forward_flops` counts more than theirs together, an operation of products with the rest
        divided by the tensor-parallel size."""
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
        """The messages that each rank sends in one micro-batch, forward and backward; named by the place within the
        block that sends them."""
        for name, block in self.submodules().items():
            for message in block.messages(micro_batch):
                yield message.within(name)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path of a submodule, or name of an operator of the block ("": the block itself) -> bytes of one micro-batch
        that a rank keeps from its forward for its backward.

        A tensor that several operators keep counts once. Counted is what the host's operators and the fused ones of an
        Ascend keep, not those that MindSpore composes; what all layers share (angles, an explicit mask) is not.
        """
        inner = {name: block.kept_bytes(micro_batch) for name, block in self.submodules().items()}
        return {join(module, name): size for module, sizes in inner.items() for name, size in sizes.items()}


@dataclass(frozen=True)
class ParametersOf(Block):
    """A block that has the parameters of the block `used` and nothing else: no FLOPs, operations, messages and kept
    bytes."""

    used: Block

    def submodules(self) -> dict[str, Block]:
        return {}

    def parameters(self) -> dict[str, ParameterSpec]:
        return self.used.parameters()
