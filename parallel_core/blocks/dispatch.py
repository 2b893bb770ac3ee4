"""The way of tokens to the ranks of their experts and back, as messages (`pynative.moe.token_dispatcher`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from parallel_core.blocks.block import Block
from parallel_core.blocks.micro_batch import FLOAT32, INT32, MicroBatch
from parallel_core.config import ModelConfig
from parallel_core.messages import Message, message
from parallel_core.operations import Operation, elementwise


@dataclass(frozen=True)
class Dispatch(Block):
    """The dispatch of tokens: for each of a token's k choices among E experts a row of h features and a probability go
    to the expert, and a row of h features comes back.

    The number of rows of a rank depends on the router: bytes are those of an even one. In an all-to-all of n ranks, of
    which n / e share each expert (e: expert-parallel size), each rank sends about (n-1)/e T k rows, forward twice and
    backward twice, if no experts are hot or do nothing and they are not padded to a capacity; T = b s/(c t) tokens of a
    rank, of b sequences of s over c context- and t tensor-parallel ranks.
    """

    hidden_size: int
    choices: int
    """The number of experts that a token chooses, k."""
    experts: int
    """The number of experts of the layer, E."""
    owners: int
    """The number of ranks that have different experts, e."""
    shards: int
    """The number of ranks that share each expert (expert tensor parallelism)."""
    by_all_gather: bool
    """Whether every rank gets all tokens, instead of those for its experts."""
    capacity_factor: float | None
    """The capacity of experts whose rows are padded to it, as a multiple of an even share; None: not padded."""
    hot: int = 0
    """The number of hot experts of the layer, whose tokens stay on their rank; bytes are counted as if each owner had
    equally many of them."""
    cold_share: float = 1.0
    """The share of an expert's capacity that a cold expert has."""
    zero: int = 0
    """The number of experts that do nothing, which a token may choose beside the `experts`: such a choice is not
    sent."""

    @classmethod
    def of(cls, config: ModelConfig) -> "Dispatch":
        """The dispatch that the configuration asks for."""
        moe, parallel = config.moe_config, config.parallel_config
        return cls(
            config.hidden_size,
            moe.moe_router_topk,
            moe.num_experts or 1,
            parallel.expert_model_parallel_size,
            parallel.expert_tensor_parallel_size or parallel.tensor_model_parallel_size,
            moe.moe_token_dispatcher_type == "allgather",
            moe.moe_expert_capacity_factor if moe.moe_pad_expert_input_to_capacity else None,
            moe.hot_expert_num if parallel.expert_model_parallel_size > 1 else 0,
            moe.cold_token_percent,
            moe.num_zero_experts,
        )

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """Four copies of rows on a rank in each pass: into the order of their experts, again when they have arrived,
        and both once more on the way back."""
        rows = self._sent(micro_batch.tokens // micro_batch.tensor) * self.shards
        copied = 2 * rows * self.hidden_size * micro_batch.item_size
        yield elementwise(4 * copied, 4 * copied, 8)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of the dispatch. Tensor-parallel ranks that have the same tokens send a part of them each;
        results of the parts are gathered afterwards, and in the backward the gradients of the parts."""
        tokens = micro_batch.tokens // micro_batch.tensor
        hidden, probs = self.hidden_size * micro_batch.item_size, self.choices * FLOAT32
        exchange = self._gathered if self.by_all_gather else self._exchanged
        yield from exchange(micro_batch, tokens)
        if micro_batch.sequence.tensor == 1:
            yield from micro_batch.tensor_message("all_gather", tokens * hidden)
            for each in (hidden, probs):
                yield from micro_batch.tensor_message("all_gather", tokens * each, backward=True)

    def _exchanged(self, micro_batch: MicroBatch, tokens: int) -> Iterator[Message]:
        """Messages of the all-to-all: numbers of rows, probabilities, hidden states there and back."""
        ranks, rows = self.owners * self.shards, self._rows(micro_batch, tokens)
        hidden = (ranks - 1) * rows * self.hidden_size * micro_batch.item_size
        if self.capacity_factor is None or self.hot:
            yield from self._message("all_to_all", (ranks - 1) * (self.experts // self.owners + self.hot) * INT32)
        for backward in (False, True):
            yield from self._message("all_to_all", (ranks - 1) * rows * FLOAT32, backward)
            for _ in range(2):
                yield from self._message("all_to_all", hidden, backward)

    def _rows(self, micro_batch: MicroBatch, tokens: int) -> int:
        """The number of rows that one rank gets from another, which routes `tokens` tokens."""
        cold = self.experts - self.hot
        if self.capacity_factor is None:
            return self._sent(tokens) * cold // (self.owners * self.experts)
        routed = micro_batch.tokens_between
        capacity = ceil(routed * self.choices / self.experts * self.capacity_factor)
        return cold // self.owners * min(int(capacity * self.cold_share), tokens)

    def _sent(self, tokens: int) -> int:
        """The number of choices of `tokens` tokens that go to real experts, not to those that do nothing."""
        return tokens * self.choices * self.experts // (self.experts + self.zero)

    def _gathered(self, micro_batch: MicroBatch, tokens: int) -> Iterator[Message]:
        ranks = self.owners * self.shards
        hidden, probs = self.hidden_size * micro_batch.item_size, self.choices * FLOAT32
        yield from self._message("all_gather", tokens * self.choices * INT32)
        yield from self._message("all_gather", tokens * probs)
        yield from self._message("reduce_scatter", ranks * tokens * probs, backward=True)
        for backward in (False, True):
            yield from self._message("all_gather", tokens * hidden, backward)
            yield from self._message("reduce_scatter", ranks * tokens * hidden, backward)

    def _message(self, operation: str, size: int, backward: bool = False) -> Iterator[Message]:
        yield from message("tp-ep", operation, size, self.owners * self.shards, backward=backward)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes of the indices that are kept for the backward, under "", with an even router: each row's token, choice
        and place (with an all-gather a place for each choice of all ranks), and after an all-to-all the order that
        sorts received rows by expert, where a rank has several experts and the group several ranks. Rows that pad
        experts to a capacity are not counted."""
        choices = micro_batch.tokens // micro_batch.tensor * self.choices
        rows = self._sent(micro_batch.tokens // micro_batch.tensor) * self.shards
        ranks = self.owners * self.shards
        if self.by_all_gather:
            return {"": (2 * rows + choices * ranks) * INT32}
        is_sorted = 1 in (ranks, self.experts // self.owners)
        return {"": (3 * rows + (0 if is_sorted else rows)) * INT32}
