"""The interface of layers, and the transformer layer: attention and feed-forward block with their norms, whose outputs
are added to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from parallel_core.blocks.block import Block, join
from parallel_core.blocks.kinds import FEED_FORWARDS, MIXERS, made
from parallel_core.blocks.lightning_attention import LightningAttention
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.config import ModelConfig
from parallel_core.operations import RESIDUAL, Operation, elementwise
from parallel_core.recompute.parts import Again, LayerParts, Part


class Branch(NamedTuple):
    """A sublayer with the norm before it (`norm`) and the one behind it (`norm_after`), by the names of their fields in
    the layer, which may lack each of the norms. place: number of its dropout mask in the layer; mixes: whether it mixes
    positions; earlier_norm: MindFormers' name of the norm before it; connection: name of the field of its
    hyper-connection, in a layer with several residual streams."""

    norm: str
    sublayer: str
    norm_after: str
    place: int
    """The number of its dropout mask among the layer's; 0 is the mask of attention's probabilities."""
    mixes: bool
    """Whether the sublayer mixes positions, and so is given masks and documents' starts."""
    earlier_norm: str | None = None
    """The norm's name in MindFormers' lists of modules, beside `norm`; None: no other name."""
    connection: str | None = None
    """The name of the field that reads and writes several residual streams for it, in a layer with such; None: no layer
    has."""


UNWEIGHTED = ((1.0, 1.0), (1.0, 1.0))


class AnyLayer(Block):
    """The interface of every kind of layer: the width of the residual stream, and the parts that may run again."""

    @property
    def hidden_size(self) -> int:
        """Width of its sublayers' inputs and outputs."""
        raise NotImplementedError

    @property
    def residual_width(self) -> int:
        """Width of the residual stream, or of several streams together."""
        return self.hidden_size

    def parts(self) -> LayerParts:
        """The layer's parts that may run again, and the linears whose tensor-parallel collectives need not run again
        with them."""
        raise NotImplementedError

    def kept_for_others(self, micro_batch: MicroBatch) -> int:
        """Bytes that later layers read as well, and that are kept even where this layer is recomputed."""
        return 0

    def input_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the layer's input, the residual stream, on a rank."""
        return micro_batch.tokens_between * self.residual_width * micro_batch.residual_item_size

    def normed_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of `hidden_size` features of each token that a rank has between two tensor-parallel regions, in the
        type of the residual stream: those of the input of the norm before a sublayer."""
        return micro_batch.tokens_between * self.hidden_size * micro_batch.residual_item_size


class BranchedLayer(AnyLayer):
    """A layer of sublayers one after the other, each with its norms; their outputs are added to the residual stream.
    BRANCHES: the sublayers that it may have; residual_weights: for each of them the factors of the residual and of the
    sublayer's output."""

    BRANCHES: ClassVar[tuple[Branch, ...]]
    residual_weights: tuple[tuple[float, float], ...] = UNWEIGHTED
    """For each branch the factor of the residual, and that of the sublayer's output that is added to it; --scale-depth
    is one more factor of the latter."""

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches whose sublayer this layer has, in order."""
        return tuple(branch for branch in self.BRANCHES if getattr(self, branch.sublayer) is not None)

    @property
    def hidden_size(self) -> int:
        first = self.branches[0]
        return (getattr(self, first.norm) or getattr(self, first.norm_after)).size

    def kept_for_others(self, micro_batch: MicroBatch) -> int:
        sublayers: list[Sublayer] = [getattr(self, branch.sublayer) for branch in self.branches]
        return sum(sublayer.kept_for_others(micro_batch) for sublayer in sublayers)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes that its parts keep for the backward, and under "for_others" those of `kept_for_others`, if
        any."""
        kept, for_others = super().kept_bytes(micro_batch), self.kept_for_others(micro_batch)
        return {**kept, "for_others": for_others} if for_others else kept

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of its parts, and for each branch an addition to the residual stream; not with
        hyper-connections, which count that themselves."""
        yield from super().operations(micro_batch)
        yield from self._residual_operations(micro_batch)

    def _residual_operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        stream = self.input_bytes(micro_batch)
        for branch in self.branches:
            yield elementwise(3 * stream, 2 * stream, named=RESIDUAL).within(f"{branch.sublayer}.residual")

    def parts(self) -> LayerParts:
        """The parts that may run again: of each branch the norm before the sublayer, if it has one, and the sublayer's
        own parts; and the linears whose tensor-parallel collectives need not run again."""
        parts: list[Part] = []
        collectives, linear_after = [], {}
        for branch in self.branches:
            sublayer: Sublayer = getattr(self, branch.sublayer)
            first = tuple(join(branch.sublayer, name) for name in sublayer.first_linears)
            has_norm = getattr(self, branch.norm) is not None
            if has_norm:
                parts.append(_norm_part(branch, first))
            called, norm = sublayer.called or branch.sublayer, branch.norm if first and has_norm else None
            parts += [part.within(branch.sublayer, called, norm) for part in sublayer.parts()]
            collectives += [join(branch.sublayer, name) for name in sublayer.collectives]
            if has_norm and {*first} & {*collectives}:
                linear_after[branch.norm] = first[0]
        return LayerParts(tuple(parts), frozenset(collectives), linear_after)


@dataclass(frozen=True)
class Layer(BranchedLayer):
    """A transformer layer: x + attention(norm(x)), then x + mlp(norm(x)), with a mixer of any kind as attention; with
    --apply-residual-connection-post-layernorm norm(x) + attention(norm(x)), and likewise for mlp. With sandwich norm
    the result of attention, and of mlp, is normed before it is added. Both addends may have a factor. A norm that is
    None is left out. A layer of a hybrid stack may have only attention or only mlp."""

    input_layernorm: Norm | None
    self_attention: Sublayer | None
    pre_mlp_layernorm: Norm | None
    mlp: Sublayer | None
    post_attention_layernorm: Norm | None = None
    post_mlp_layernorm: Norm | None = None
    residual_weights: tuple[tuple[float, float], tuple[float, float]] = UNWEIGHTED

    BRANCHES: ClassVar[tuple[Branch, ...]] = (
        Branch("input_layernorm", "self_attention", "post_attention_layernorm", 1, True, "attention_norm", "attn_mhc"),
        Branch("pre_mlp_layernorm", "mlp", "post_mlp_layernorm", 2, False, "ffn_norm", "mlp_mhc"),
    )

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> Layer:
        """The configuration's layer with this global number, from 0; layers need not be alike."""
        mixer, feed_forward = made(MIXERS, config, number), made(FEED_FORWARDS, config, number)
        sandwiched, normed = config.use_sandwich_norm, config.use_pre_norm
        return cls(
            Norm.of(config) if mixer and normed else None,
            mixer,
            Norm.of(config) if feed_forward and normed else None,
            feed_forward,
            Norm.of_branch_output(config, config.attn_post_norm_scale) if mixer and sandwiched else None,
            Norm.of_branch_output(config, config.ffn_post_norm_scale) if feed_forward and sandwiched else None,
            _residual_weights(config, mixer),
        )


def _residual_weights(config: ModelConfig, mixer: Sublayer | None) -> tuple[tuple[float, float], tuple[float, float]]:
    scales, is_linear = config.scales, isinstance(mixer, LightningAttention)
    of_mixer = scales.linear_attention_residual if is_linear else scales.attention_residual
    (alpha, beta), (gamma, delta) = (given or (1.0, 1.0) for given in (of_mixer, scales.mlp_residual))
    return (alpha, beta), (gamma, delta)


def _norm_part(branch: Branch, feeds: tuple[str, ...]) -> Part:
    aliases = [branch.earlier_norm] if branch.earlier_norm else []
    aliases += [f"{name}.norm" for name in (branch.norm, *aliases)]
    return Part(
        branch.norm, Again.OUTPUT, (branch.norm,), feeds=feeds, flag="layernorm", aliases=tuple(aliases),
        unasked=True, name=branch.norm,
    )  # fmt: skip
