"""The router of a mixture of experts: a linear h -> E whose scores choose each token's experts, unless a table of
tokens or the batch says them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch, between_regions
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Constant, InTurns, Normal
from parallel_core.messages import Message, message
from parallel_core.moe.routing import RoutingRule
from parallel_core.sharding import ShardSpec

INT32 = 4
ROUTER_DTYPES = {"fp32": "float32", "fp64": "float64"}
"""Value of --moe-router-dtype -> name of the type of the router's matrix product."""
_SIZE_OF: dict[str | None, int] = {"float32": FLOAT32, "float64": 8}


class CountedLoad(NamedTuple):
    """The counts of tokens of each expert, or of each group of experts, that a balancing loss sums over ranks. over:
    kind of the ranks' group; ranks: their number; counts: the number of experts, or groups; by_sequence: whether each
    sequence of a micro-batch has counts of its own."""

    over: str
    """Kind of the group of ranks."""
    ranks: int
    """The number of ranks in that group."""
    counts: int
    """The number of counts: experts, or groups of experts."""
    by_sequence: bool
    """Whether each sequence has counts of its own; else all sequences of a micro-batch have them together."""


def counted_loads(config: ModelConfig) -> Iterator[CountedLoad]:
    """The counts that the configuration's balancing losses sum over ranks: once for all losses within a micro-batch
    (such as "aux_loss"), once for each loss over groups of experts with a weight (device level, communication; not
    where experts are sampled), once for "global_aux_loss". The ranks are the context-parallel ones, with sequence
    parallelism times the tensor-parallel ones, and for "global_aux_loss" times the data-parallel ones
    (`pynative.moe.aux_loss`)."""
    moe, parallel, cut = config.moe_config, config.parallel_config, between_regions(config) is not None
    sharing = parallel.context_parallel_size * (parallel.tensor_model_parallel_size if cut else 1)
    over, kinds = "tp-cp" if cut else "cp", set(moe.balancing_losses)
    if kinds - {"global_aux_loss"}:
        yield CountedLoad(over, sharing, moe.num_choices, True)
    if not moe.samples:
        for weight in (moe.moe_device_level_aux_loss_coeff, moe.moe_comm_aux_loss_coeff):
            if weight:
                yield CountedLoad(over, sharing, RoutingRule.of(moe).groups, True)
    if "global_aux_loss" in kinds:
        over = "tp-dp-cp" if cut else "dp-cp"
        yield CountedLoad(over, sharing * parallel.data_parallel_size, moe.num_choices, False)


@dataclass(frozen=True)
class Router(Block):
    """The router: x W^T + b with W [E, h] and b [E], if any, of the tokens that a rank has between two tensor-parallel
    regions; then the choice of k of E experts, those that do nothing included. std: standard deviation of the first
    weights; expert_bias: whether a bias without a gradient is added to scores for the choice alone; computes_in: type
    to which the input is converted, or None; hashed_tokens: number of ids in a table that gives each token's experts,
    or None; replays: whether a batch may say them."""

    hidden_size: int
    experts: int
    topk: int
    std: float
    """Standard deviation of the first values of weight and bias."""
    dtype: str
    bias: bool
    expert_bias: bool
    """Whether a bias without a gradient, moved after every step, is added to scores for the choice alone."""
    computes_in: str | None
    """The type of --moe-router-dtype, to which the input is converted; None: that is not given, or is the type of the
    computation already."""
    partial_over: str | None
    """Kind of the group whose ranks route different shards of the sequence (see ShardSpec); None: there is none."""
    loads: tuple[CountedLoad, ...]
    """The counts that balancing losses sum over ranks."""
    frozen: bool = False
    """Whether weight and bias are not trained."""
    hashed_tokens: int | None = None
    """The number of ids in a table that gives each token's experts; None: scores choose."""
    replays: bool = False
    """Whether a batch may say each token's experts."""

    @property
    def keeps_hidden_states(self) -> bool:
        """Whether it keeps its input as it is given, so that others may share it; not where it converts it
        (`computes_in`), nor where it is frozen and keeps none. Jitter of the input is not considered."""
        return not (self.computes_in or self.frozen)

    @classmethod
    def of(cls, config: ModelConfig, number: int | None = None) -> Router:
        """The router of the configuration's layer with this global number, from 0; None: of a layer whose experts are
        chosen by scores, not by a table. Raises AssertionError for a configuration without experts."""
        moe = config.moe_config
        assert moe.num_experts is not None, "a dense layer has no router"
        hashed = number is not None and number < min(moe.hash_layers, config.num_layers)
        dtype = ROUTER_DTYPES.get(moe.moe_router_dtype or "")
        return cls(
            config.hidden_size, moe.num_choices, moe.moe_router_topk, config.initial_std, config.params_dtype,
            config.add_bias_linear, moe.has_expert_bias and not hashed,
            dtype if dtype != config.compute_dtype else None,
            between_regions(config), tuple(counted_loads(config)), config.lora_config.use_lora,
            config.unpadded_vocab_size if hashed else None, moe.moe_enable_routing_replay,
        )  # fmt: skip

    def parameters(self) -> dict[str, ParameterSpec]:
        shapes = {"weight": (self.experts, self.hidden_size)} | ({"bias": (self.experts,)} if self.bias else {})
        return {
            name: ParameterSpec(ShardSpec(shape=shape, partial_over=self.partial_over), Normal(self.std), self.dtype)
            for name, shape in shapes.items()
        }

    def untrained(self) -> dict[str, ParameterSpec]:
        """Name -> tensor that has no gradient and is kept with the parameters: "expert_bias" [experts], and "tid2eid"
        [hashed_tokens, topk], the table of each token's experts, whose first values are placeholders for those of a
        checkpoint; each float32, and only if the router has it."""
        bias = ParameterSpec(ShardSpec(shape=(self.experts,)), Constant(0.0), "float32")
        found = {"expert_bias": bias} if self.expert_bias else {}
        if self.hashed_tokens is None:
            return found
        table = ShardSpec(shape=(self.hashed_tokens, self.topk))
        return found | {"tid2eid": ParameterSpec(table, InTurns(self.experts), "float32")}

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        return 2.0 * tokens * self.hidden_size * self.experts

    def frozen_flops(self, tokens: int) -> float:
        return self.forward_flops(tokens, 0) if self.frozen else 0.0

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages of the balancing losses' counts. They are marked as the backward's, since recomputation does not
        repeat them: where the layer runs again, they are sent in the second run alone."""
        for load in self.loads:
            counts = load.counts * (micro_batch.batch if load.by_sequence else 1)
            yield from message(load.over, "all_reduce", counts * INT32, load.ranks, backward=True)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes kept for the backward, under "": of the input where the router is trained, of the logits, and of the
        chosen experts' numbers. Input and logits have the type `computes_in`, if there is one."""
        item_size = _SIZE_OF.get(self.computes_in, micro_batch.item_size)
        of_token = self.hidden_size * (not self.frozen) * item_size + self.experts * item_size + self.topk * INT32
        return {"": micro_batch.tokens_between * of_token}
