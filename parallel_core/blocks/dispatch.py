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
    """Rows of h features and a probability for each of a token's k choices among E experts, there and back.

    How many rows a rank gets is the router's choice: bytes are those of an even one. By all-to-all, of n ranks that
    have all experts once, e of them (expert parallelism) different ones, each sends (n-1)/e T k rows, forward twice and
    backward twice; T = b s/(c t).
    """

    hidden_size: int
    choices: int
    """Experts of a token, k."""
    experts: int
    """E."""
    owners: int
    """Ranks that have different experts, e."""
    shards: int
    """Ranks that share each expert (expert tensor parallelism)."""
    by_all_gather: bool
    """Every rank gets all tokens, instead of those for its experts."""
    capacity_factor: float | None
    """For experts whose rows are padded to its capacity: that, as a multiple of an even share."""
    hot: int = 0
    """Experts whose tokens stay where they are, as many of each owner's, if others have different ones."""
    cold_share: float = 1.0
    """The share of cold experts' capacity."""
    zero: int = 0
    """Further choices whose tokens stay."""

    @classmethod
    def of(cls, config: ModelConfig) -> "Dispatch":
        """The configuration's."""
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
        """Rows are copied in the order of their experts, again when they have arrived, and both ways back."""
        rows = self._sent(micro_batch.tokens // micro_batch.tensor) * self.shards
        copied = 2 * rows * self.hidden_size * micro_batch.item_size
        yield elementwise(4 * copied, 4 * copied, 8)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of the dispatch. Tensor-parallel ranks that have the same tokens send a part each; the parts are
        gathered after."""
        tokens = micro_batch.tokens // micro_batch.tensor
        hidden, probs = self.hidden_size * micro_batch.item_size, self.choices * FLOAT32
        exchange = self._gathered if self.by_all_gather else self._exchanged
        yield from exchange(micro_batch, tokens)
        if micro_batch.sequence.tensor == 1:
            yield from micro_batch.tensor_message("all_gather", tokens * hidden)
            for each in (hidden, probs):
                yield from micro_batch.tensor_message("all_gather", tokens * each, backward=True)

    def _exchanged(self, micro_batch: MicroBatch, tokens: int) -> Iterator[Message]:
        """The elements of an all-to-all that go to other ranks."""
        ranks, rows = self.owners * self.shards, self._rows(micro_batch, tokens)
        hidden = (ranks - 1) * rows * self.hidden_size * micro_batch.item_size
        if self.capacity_factor is None or self.hot:
            yield from self._message("all_to_all", (ranks - 1) * (self.experts // self.owners + self.hot) * INT32)
        for backward in (False, True):
            yield from self._message("all_to_all", (ranks - 1) * rows * FLOAT32, backward)
            for _ in range(2):
                yield from self._message("all_to_all", hidden, backward)

    def _rows(self, micro_batch: MicroBatch, tokens: int) -> int:
        """The rows that one rank gets from another."""
        cold = self.experts - self.hot
        if self.capacity_factor is None:
            return self._sent(tokens) * cold // (self.owners * self.experts)
        routed = micro_batch.tokens_between
        capacity = ceil(routed * self.choices / self.experts * self.capacity_factor)
        return cold // self.owners * min(int(capacity * self.cold_share), tokens)

    def _sent(self, tokens: int) -> int:
        """Choices of so many tokens that go to experts."""
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
        """The bytes that are kept with an even router: which token and which choice each row is of, where the rows of
        each choice are, and the order in which rows that come are those of the experts."""
        choices = micro_batch.tokens // micro_batch.tensor * self.choices
        rows = self._sent(micro_batch.tokens // micro_batch.tensor) * self.shards
        ranks = self.owners * self.shards
        if self.by_all_gather:
            return {"": (2 * rows + choices * ranks) * INT32}
        is_sorted = 1 in (ranks, self.experts // self.owners)
        return {"": (3 * rows + (0 if is_sorted else rows)) * INT32}
