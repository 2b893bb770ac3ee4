"""A low-rank adapter beside a linear whose own weight is frozen ("LoRA", Hu et al., 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.initial_values import Constant, Normal
from parallel_core.operations import Operation, product
from parallel_core.sharding import Cut, ShardSpec

ZEROS = Constant(0.0)


@dataclass(frozen=True)
class Adapter(Block):
    """A linear's low-rank adapter: (alpha / r) B(A(dropout(x))) is added to y = W x + b, with A [r, i] and B [o, r]; r
    is `rank`, i `input_size`, o `output_size`.

    It sends no messages of its own. Of a linear whose output features are cut over ranks, A is whole and B is cut as
    they are; of one whose input features are cut, A is cut as they are and B is whole, so that B(A x) on a rank is a
    share of a sum over the ranks, as W x is. So, of a linear that is cut, the gradient of the factor that is whole (A
    or B) is a partial sum over the ranks.
    """

    input_size: int
    output_size: int
    cut_axis: int | None
    """The linear's `cut_axis`: 0 output features, 1 input features, None whole."""
    parts: int
    """The linear's number of equal fused parts along the cut axis."""
    rank: int
    alpha: float
    dropout: float
    initial: Normal | Constant
    """The first values of A."""
    dtype: str
    partial_over: str | None
    """Kind of the group over which the gradient of a part of the adapter that is not cut is a partial sum (see
    ShardSpec); None: of none."""
    widths: tuple[int, ...] = ()
    """The linear's widths of fused parts along the cut axis, where they are not equal; else empty."""
    unit: int = 0
    """The linear's number of features that stay together when it is cut unevenly; 0: every part is cut evenly."""
    initial_b: Normal | Constant = ZEROS
    """The first values of B: zeros, so that a model begins as it is without adapters."""

    @property
    def scale(self) -> float:
        """Factor of the adapter's output, alpha / r."""
        return self.alpha / self.rank

    def parameters(self) -> dict[str, ParameterSpec]:
        a, b = (self.rank, self.input_size), (self.output_size, self.rank)
        cut = Cut(self.cut_axis or 0, parts=self.parts, widths=self.widths, unit=self.unit)
        cuts_a, cuts_b = ((cut,) if self.cut_axis == axis else () for axis in (1, 0))
        return {
            "lora_a": ParameterSpec(self._shard(a, cuts_a), self.initial, self.dtype),
            "lora_b": ParameterSpec(self._shard(b, cuts_b), self.initial_b, self.dtype),
        }

    def _shard(self, shape: tuple[int, int], cuts: tuple[Cut, ...]) -> ShardSpec:
        return ShardSpec(shape=shape, cuts=cuts, partial_over=None if cuts else self.partial_over, role="adapter")

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        return 2.0 * tokens * self.rank * (self.input_size + self.output_size)

    def products(self, rows: float, inner: int, columns: int, item_size: int, *, count: int = 1) -> Iterator[Operation]:
        """The products of A and of B for [rows, inner] -> [rows, columns] on one rank, of `count` equal adapters
        together. item_size: bytes of a number."""
        yield product(rows, inner, self.rank, item_size, count=count).within("lora_a")
        yield product(rows, self.rank, columns, item_size, count=count).within("lora_b")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes of A's output, `rank` numbers a token, kept for the backward, under ""; the adapter's input is not
        counted."""
        tokens = micro_batch.tokens_between if self.cut_axis is None else micro_batch.tokens
        return {"": tokens * self.rank * micro_batch.item_size}
