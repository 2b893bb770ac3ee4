"""A linear cut over tensor parallelism by columns or by rows ("Megatron-LM", Shoeybi et al., 2019, section 3), or whole
on every rank."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

from parallel_core.blocks.adapter import ZEROS, Adapter
from parallel_core.blocks.block import Block, ParameterSpec, join
from parallel_core.blocks.micro_batch import MicroBatch, between_regions
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Constant, Normal
from parallel_core.messages import Message
from parallel_core.numerics.float8_recipes import Recipe
from parallel_core.operations import Operation, bias_gradient, product
from parallel_core.sharding import Cut, Role, ShardSpec, share

COLUMNS, ROWS = 0, 1
"""Values of `cut_axis`, axes of a weight [o, i]: output features (a column-parallel linear) or input features (a
row-parallel one)."""


@dataclass(frozen=True)
class Linear(Block):
    """A linear y = x W^T + b with W [o, i] and, with `bias`, b [o]; cut along `cut_axis` of W (COLUMNS: o, ROWS: i)
    over the tensor-parallel ranks, or whole (None).

    parts, widths, unit: as in `Cut`; partial_over, role, interleaved_rows: as in `ShardSpec`. allocates_weight: False
    where it uses another module's weight. rounds: whether the weight is rounded to 4 bits; recipe: the rounding of the
    products' operands to 8 bits. frozen: weight and bias are not trained, only an `adapter`.
    """

    input_size: int
    output_size: int
    cut_axis: int | None
    """COLUMNS or ROWS; None: the linear is whole on every rank, which applies it between two tensor-parallel regions to
    the tokens that it has there."""
    initial: Normal | Constant
    """The first values of the weight."""
    dtype: str
    bias: bool = True
    bias_initial: Normal | Constant = ZEROS
    parts: int = 1
    """The number of equal fused parts along the cut axis, each cut on its own: 2 for gate and up of a gated
    activation."""
    widths: tuple[int, ...] = ()
    """The widths of fused parts along the cut axis, each cut on its own, where they are not equal."""
    unit: int = 0
    """The number of features along the cut axis that stay together (a head's) under --unaligned-linear; 0: ranks divide
    every part evenly (see Cut)."""
    allocates_weight: bool = True
    """Whether the linear has a weight of its own; False: it uses another module's (tied embeddings)."""
    partial_over: str | None = None
    """Kind of the group whose ranks apply parts that are not cut (the bias of a row-parallel linear, or all) to
    different shards of the sequence (see ShardSpec); None: there is none."""
    role: Role | None = None
    interleaved_rows: tuple[int, ...] = ()
    """The numbers of rows of a repeated group of fused parts, as query, key and value rows of a key/value group (see
    ShardSpec)."""
    frozen: bool = False
    """Whether weight and bias are not trained."""
    adapter: Adapter | None = None
    rounds: bool = False
    """Whether the weight is rounded to 4 bits, as --qat-scheme says, where it is multiplied."""
    recipe: Recipe | None = None
    """The rounding of its products' operands to 8 bits; None: they are not rounded."""

    @classmethod
    def column(
        cls, config: ModelConfig, input_size: int, output_size: int, *, bias: bool, parts: int = 1, unit: int = 0
    ) -> "Linear":
        """A column-parallel linear of the model, its weight normal with the model's `initial_std`. parts: equal fused
        parts of the output features, each cut on its own. unit: output features that stay together under
        --unaligned-linear; 0: they are divided evenly under it, too."""
        initial, unit = Normal(config.initial_std), unit * config.parallel_config.unaligned_linear
        return cls(
            input_size, output_size, COLUMNS, initial, config.params_dtype, bias=bias, parts=parts, unit=unit,
            rounds=config.rounds_weights,
        )  # fmt: skip

    @classmethod
    def row(cls, config: ModelConfig, input_size: int, *, bias: bool, unit: int = 0) -> "Linear":
        """A row-parallel linear of the model, back into the residual stream: its weight normal with the model's
        `initial_std` / sqrt(2 x layers) (GPT-2, 2019). unit: input features that stay together under
        --unaligned-linear; 0: they are divided evenly under it, too."""
        initial = Normal(config.initial_std / sqrt(2.0 * config.num_layers))
        partial_over, unit = between_regions(config), unit * config.parallel_config.unaligned_linear
        return cls(
            input_size, config.hidden_size, ROWS, initial, config.params_dtype, bias, unit=unit,
            partial_over=partial_over, rounds=config.rounds_weights,
        )  # fmt: skip

    @classmethod
    def between(cls, config: ModelConfig, input_size: int, output_size: int) -> "Linear":
        """A linear of the model without a bias that is whole on every rank, its weight normal with the model's
        `initial_std`."""
        initial, partial_over = Normal(config.initial_std), between_regions(config)
        return cls(input_size, output_size, None, initial, config.params_dtype, bias=False, partial_over=partial_over)

    @property
    def is_column(self) -> bool:
        """Whether it is cut by its output features."""
        return self.cut_axis == COLUMNS

    def parameters(self) -> dict[str, ParameterSpec]:
        specs = {}
        if self.allocates_weight:
            specs["weight"] = ParameterSpec(self._weight_shard(), self.initial, self.dtype)
        if self.bias:
            specs["bias"] = ParameterSpec(self._bias_shard(), self.bias_initial, self.dtype)
        adapter = {} if self.adapter is None else self.adapter.parameters()
        return specs | {join("adapter", name): spec for name, spec in adapter.items()}

    def _weight_shard(self) -> ShardSpec:
        whole = ShardSpec(
            shape=(self.output_size, self.input_size), role=self.role, interleaved_rows=self.interleaved_rows
        )
        if self.cut_axis is None:
            return replace(whole, partial_over=self.partial_over)
        return replace(whole, cuts=(self._cut(self.cut_axis),))

    def _bias_shard(self) -> ShardSpec:
        """The bias's cut: with the output features; where those are whole, so is the bias."""
        if self.cut_axis == COLUMNS:
            return ShardSpec(shape=(self.output_size,), cuts=(self._cut(0),))
        return ShardSpec(shape=(self.output_size,), partial_over=self.partial_over)

    def _cut(self, axis: int) -> Cut:
        return Cut(axis, parts=self.parts, widths=self.widths, unit=self.unit)

    def share(self, ranks: int) -> int:
        """The number of features along the cut axis that each of `ranks` ranks has, those that fill up the last ranks
        of an uneven cut included. Of a linear that is whole the input features are divided."""
        length = self.output_size if self.cut_axis == COLUMNS else self.input_size
        return sum(share(part, ranks, self.unit or 1) for part in self._cut(0).parts_of(length))

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        adapter = 0.0 if self.adapter is None else self.adapter.forward_flops(tokens, seq_length)
        return self._flops(tokens) + adapter

    def frozen_flops(self, tokens: int) -> float:
        return self._flops(tokens) if self.frozen else 0.0

    def _flops(self, tokens: int) -> float:
        return 2.0 * tokens * self.input_size * self.output_size

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        tensor = micro_batch.tensor
        rows = micro_batch.tokens_between if self.cut_axis is None else micro_batch.tokens
        inner, columns = self.input_size, self.output_size
        if self.cut_axis == ROWS:
            inner = self.share(tensor)
        elif self.cut_axis == COLUMNS:
            columns = self.share(tensor)
        yield product(rows, inner, columns, micro_batch.item_size, trains=not self.frozen)
        if self.bias and not self.frozen:
            behind = rows if self.cut_axis == COLUMNS else micro_batch.tokens_between
            yield bias_gradient(behind, columns, micro_batch.item_size).within("bias")
        if self.adapter is not None:
            for one in self.adapter.products(rows, inner, columns, micro_batch.item_size):
                yield one.within("adapter")

    @property
    def keeps_input(self) -> bool:
        """Whether the backward needs its input, for the gradient of the weight or of an adapter."""
        return not self.frozen or self.adapter is not None

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of a column-parallel linear: the input enters the tensor-parallel region (`MicroBatch.enter`),
        in the backward again if the linear keeps its input (`keeps_input`), and its gradient leaves the region. Of a
        row-parallel one: the output leaves the region, and its gradient enters. Of a whole one: none."""
        if self.cut_axis == COLUMNS:
            yield from micro_batch.enter(self.input_size)
            if self.keeps_input:
                yield from micro_batch.enter(self.input_size, backward=True)
            yield from micro_batch.leave(self.input_size, backward=True)
        elif self.cut_axis == ROWS:
            yield from micro_batch.leave(self.output_size)
            yield from micro_batch.enter(self.output_size, backward=True)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        own = {"": self.input_bytes(micro_batch) if self.keeps_input else 0}
        return own if self.adapter is None else own | {"adapter": self.adapter.kept_bytes(micro_batch)[""]}

    def input_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the input on a rank: of a row-parallel linear the rank's share of the features, of the tokens that
        the rank has inside a tensor-parallel region; else all features, of the tokens that it has between two
        regions."""
        if self.cut_axis == ROWS:
            return micro_batch.tokens * self.share(micro_batch.tensor) * micro_batch.item_size
        return micro_batch.tokens_between * self.input_size * micro_batch.item_size
