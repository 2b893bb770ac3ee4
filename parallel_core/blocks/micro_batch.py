"""The sizes of one micro-batch's activations on one rank."""

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config import ModelConfig
from parallel_core.context import ContextLayout, SequenceLayout
from parallel_core.messages import Message, message
from parallel_core.numerics.dtypes import DTYPES

FLOAT32, INT32 = DTYPES["float32"].bytes, DTYPES["int32"].bytes


def between_regions(config: ModelConfig) -> str | None:
    """Kind of the group over which gradients of parameters between two tensor-parallel regions are partial sums: "tp"
    with sequence parallelism over several ranks, each of which applies them to its shard of the sequence; else
    None."""
    return "tp" if SequenceLayout.of(config.parallel_config).tensor > 1 else None


@dataclass(frozen=True)
class MicroBatch:
    """Sizes that all blocks of a model share: one micro-batch as one rank has it.

    Hidden states enter a tensor-parallel region before a column-parallel linear and leave it after a row-parallel one.
    Inside, a rank has its heads or features of all tokens of its context-parallel shard; between two regions the whole
    hidden states of these tokens or, with sequence parallelism over t tensor-parallel ranks, of 1/t of them
    (Korthikanti et al., 2022).
    """

    batch: int
    """The number of sequences, b."""
    seq_length: int
    """The number of tokens of a whole sequence, s."""
    tensor: int
    """Tensor-parallel size, t."""
    sequence: SequenceLayout
    """The cut of the sequence between two regions."""
    dtype: str
    """Name of the type in which layers compute."""
    residual_dtype: str
    """Name of the type of the residual stream."""

    @classmethod
    def of(cls, config: ModelConfig) -> "MicroBatch":
        """The configuration's micro-batch."""
        parallel = config.parallel_config
        return cls(
            config.dataset_config.batch_size,
            config.seq_length,
            parallel.tensor_model_parallel_size,
            SequenceLayout.of(parallel),
            config.compute_dtype,
            config.residual_dtype,
        )

    @property
    def item_size(self) -> int:
        """Bytes of one number of an activation."""
        return DTYPES[self.dtype].bytes

    @property
    def residual_item_size(self) -> int:
        """Bytes of one number of the residual stream."""
        return DTYPES[self.residual_dtype].bytes

    @property
    def tokens(self) -> int:
        """The number of tokens of a rank inside a tensor-parallel region: b s/c, with c context-parallel ranks."""
        return self.batch * self.sequence.gathered.local_length(self.seq_length)

    @property
    def tokens_between(self) -> int:
        """The number of tokens of a rank between two tensor-parallel regions: b s/c, with c context-parallel ranks, or,
        with sequence parallelism over t tensor-parallel ranks, b s/(c t)."""
        return self.batch * self.sequence.local_length(self.seq_length)

    @property
    def context(self) -> ContextLayout:
        """The context-parallel layout, of c ranks."""
        return self.sequence.context

    def tensor_message(self, operation: str, size: int, backward: bool = False) -> Iterator[Message]:
        """The message of one collective over the tensor-parallel group; none in a group of one. operation: its name,
        such as "all_gather". size: bytes of its input on a rank. backward: sent in the backward pass."""
        yield from message("tp", operation, size, self.tensor, backward=backward)

    def enter(self, width: int, backward: bool = False) -> Iterator[Message]:
        """The message by which activations of `width` features, or a gradient of them, enter a region: an all-gather
        with sequence parallelism over several ranks, else none. backward: sent in the backward pass."""
        if self.sequence.tensor > 1:
            yield from self.tensor_message("all_gather", self.tokens_between * width * self.item_size, backward)

    def leave(self, width: int, backward: bool = False) -> Iterator[Message]:
        """The message by which the sum of the ranks' `width` features, or of their gradients, leaves a region: a
        reduce-scatter with sequence parallelism, else an all-reduce; none on one tensor-parallel rank. backward: sent
        in the backward pass."""
        operation = "reduce_scatter" if self.sequence.tensor > 1 else "all_reduce"
        yield from self.tensor_message(operation, self.tokens * width * self.item_size, backward)
