"""Experts: feed-forward blocks of which a token passes through few (Shazeer et al., 2017), and shared experts, through
which every token passes.

T tokens that a rank routes, k experts a token, E experts, e expert-parallel and t' expert-tensor-parallel size, h
hidden size, f width of an expert. With balanced routing over E experts a rank's experts get R = T k t' rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from parallel_core.blocks.block import Block, ParameterSpec, join
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch, between_regions
from parallel_core.blocks.mlp import MLP, BiasActivation
from parallel_core.initial_values import Normal
from parallel_core.messages import Message
from parallel_core.operations import ACTIVATION, Operation, elementwise, product
from parallel_core.sharding import ShardSpec

if TYPE_CHECKING:
    from typing_extensions import Self

    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class ExpertLinear(Linear):
    """A linear of one expert: cut over expert tensor parallelism, another parameter on each expert-parallel rank.

    A bias that is not cut is added by the first of an expert's ranks alone, so that its gradient is a sum over them.
    """

    @classmethod
    def like(cls, linear: Linear, config: ModelConfig) -> Self:
        """A copy of the dense `linear` as an expert's. Its weight is rounded if there is a --qat-scheme, whichever."""
        return replace(
            cls(**{field.name: getattr(linear, field.name) for field in fields(linear)}),
            rounds=config.training_config.precision.qat_scheme is not None,
        )

    def parameters(self) -> dict[str, ParameterSpec]:
        return {name: spec._replace(shard=_of_expert(spec.shard)) for name, spec in super().parameters().items()}


def _of_expert(shard: ShardSpec) -> ShardSpec:
    cuts = tuple(replace(cut, over="expert-tp") for cut in shard.cuts)
    partial_over = None if cuts else "expert-tp"
    return replace(shard, cuts=cuts, replicas="expert-dp", distinct_over=("ep",), partial_over=partial_over)


@dataclass(frozen=True)
class Expert(Block):
    """One expert of a layer: probability x linear_fc2(activation(linear_fc1(x))). The activation's output is multiplied
    by the probability already, and so is a bias of linear_fc2."""

    linear_fc1: ExpertLinear
    activation: BiasActivation
    linear_fc2: ExpertLinear

    @classmethod
    def of(cls, config: ModelConfig) -> Expert:
        """The configuration's expert; all are alike."""
        mlp = MLP.of(config, config.moe_config.moe_ffn_hidden_size)
        first, second = (ExpertLinear.like(linear, config) for linear in (mlp.linear_fc1, mlp.linear_fc2))
        return cls(first, mlp.activation, second)


@dataclass(frozen=True)
class Experts(Block):
    """A layer's experts, of which a rank has E/e, named by their numbers in the whole layer."""

    expert: Expert
    count: int
    """The number of experts, E."""
    expert_parallel: int
    """Expert-parallel size, e."""
    expert_tensor: int
    """Expert-tensor-parallel size, t'."""
    topk: int
    """The number of experts that a token chooses, k."""
    zero: int = 0
    """The number of experts that do nothing, which a token may choose beside the `count`."""

    @classmethod
    def of(cls, config: ModelConfig) -> Experts:
        """The configuration's experts of a layer."""
        moe, parallel = config.moe_config, config.parallel_config
        assert moe.num_experts is not None
        sizes = parallel.expert_model_parallel_size, parallel.expert_tensor_parallel_size
        return cls(Expert.of(config), moe.num_experts, *sizes, moe.moe_router_topk, moe.num_zero_experts)

    def local(self, rank: int) -> range:
        """The numbers of a rank's experts in the layer; `rank` is its place in the expert-parallel group."""
        own = self.count // self.expert_parallel
        return range(rank * own, (rank + 1) * own)

    def parameters(self) -> dict[str, ParameterSpec]:
        """Path -> parameter for the experts of the first expert-parallel rank; the others' differ in the experts'
        numbers alone."""
        specs = self.expert.parameters()
        return {join(f"local_experts.{n}", name): spec for n in self.local(0) for name, spec in specs.items()}

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of the experts for `tokens` tokens, with balanced routing; choices of experts that do nothing (`zero`)
        have none."""
        return self.expert.forward_flops(1, seq_length) * self._choices(tokens)

    def frozen_flops(self, tokens: int) -> float:
        return self.expert.frozen_flops(1) * self._choices(tokens)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The products of each local expert with an even share of the rows; of all rows, the activation, and biases,
        which are added in a pass of their own."""
        rows, count, item_size = self.rows(micro_batch), len(self.local(0)), micro_batch.item_size
        first, second, shards = self.expert.linear_fc1, self.expert.linear_fc2, self.expert_tensor
        for linear, inner, columns in (
            (first, first.input_size, first.share(shards)),
            (second, second.share(shards), second.output_size),
        ):
            yield product(rows / count, inner, columns, item_size, count=count, trains=not linear.frozen)
            if linear.bias:
                size = rows * columns * item_size
                yield elementwise(2 * size, size).within("bias")
            if linear.adapter is not None:
                yield from linear.adapter.products(rows / count, inner, columns, item_size, count=count)
        before, after = (rows * linear.share(shards) * item_size for linear in (first, second))
        yield elementwise(before + after, 2 * before + after, named=ACTIVATION).within("activation")

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """No messages: shards of an expert get the same tokens; their outputs are summed on the way back
        (`Dispatch`)."""
        return iter(())

    def rows(self, micro_batch: MicroBatch) -> int:
        """The number of rows of a rank's experts, R, with balanced routing: each tensor-parallel rank routes its part
        of the tokens; choices of experts that do nothing (`zero`) give no rows."""
        return int(self._choices(micro_batch.tokens // micro_batch.tensor)) * self.expert_tensor

    def _choices(self, tokens: int) -> float:
        """The number of choices of `tokens` tokens that on average go to real experts, not to those that do
        nothing."""
        return tokens * self.topk * self.count / (self.count + self.zero)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward, with balanced routing: inputs of the first and of the second linears, if
        they keep them; of activations their inputs and the rows' probabilities; and with adapters the outputs of their
        first factors."""
        rows, first, second = self.rows(micro_batch), self.expert.linear_fc1, self.expert.linear_fc2
        widths = {
            "linear_fc1": first.input_size * micro_batch.item_size * first.keeps_input,
            "activation": first.share(self.expert_tensor) * micro_batch.item_size + FLOAT32,
            "linear_fc2": second.share(self.expert_tensor) * micro_batch.item_size * second.keeps_input,
        }
        for name, linear in (("linear_fc1", first), ("linear_fc2", second)):
            if linear.adapter is not None:
                widths[f"{name}.adapter"] = linear.adapter.rank * micro_batch.item_size
        return {name: rows * width for name, width in widths.items()}


@dataclass(frozen=True)
class SharedExperts(MLP):
    """The experts that every token passes through (DeepSeekMoE, Dai et al., 2024): one feed-forward block, its output
    multiplied by sigmoid(x gate_weight^T) or added as it is."""

    gate: ParameterSpec | None = None
    """gate_weight [1, h]; None: the output is added as it is."""

    @classmethod
    def of(cls, config: ModelConfig, size: int | None = None) -> Self:
        """The configuration's shared experts. size: their width; None: --moe-shared-expert-intermediate-size."""
        moe = config.moe_config
        block = super().of(config, size or moe.moe_shared_expert_intermediate_size)
        shard = ShardSpec(shape=(1, config.hidden_size), partial_over=between_regions(config))
        gate = ParameterSpec(shard, Normal(config.initial_std), config.params_dtype)
        return replace(block, gate=gate) if moe.moe_shared_expert_gate else block

    def parameters(self) -> dict[str, ParameterSpec]:
        specs = super().parameters()
        return specs if self.gate is None else {"gate_weight": self.gate, **specs}

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        gate = 0.0 if self.gate is None else 2.0 * tokens * self.linear_fc1.input_size
        return super().forward_flops(tokens, seq_length) + gate

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: those that its parts keep; with a gate, under "gate", also the experts'
        output, which the gate multiplies, and the hidden states that the gate reads, unless the first linear keeps them
        already."""
        kept, first = super().kept_bytes(micro_batch), self.linear_fc1
        weighed = micro_batch.tokens_between * self.linear_fc2.output_size * micro_batch.item_size
        own_input = 0 if first.keeps_input else first.input_bytes(micro_batch)
        return kept if self.gate is None else {**kept, "gate": weighed + own_input}
