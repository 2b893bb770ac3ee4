"""Tensor-parallel layers: linears cut by columns or rows, or whole, and an embedding cut over the vocabulary.

"Megatron-LM" (Shoeybi et al., 2019), section 3. s sequence, b batch, i input size, o output size, h hidden size,
t tensor-parallel size, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from mindspore import Tensor, nn

from parallel_core.blocks import EmbeddingTable, Linear, ParameterSpec
from parallel_core.blocks.linear import COLUMNS, ROWS
from parallel_core.blocks.micro_batch import between_regions
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Constant, Normal, by_name
from parallel_core.sharding import Cut
from pynative import kernels, parallel_state
from pynative.parameter import Dtype, make_parameter, type_name, type_of
from pynative.tensor_parallel.linear import AdapterOfLinear, linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.made_again import cast_made_again
from pynative.tensor_parallel.mappings import (
    Boundary,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from pynative.tensor_parallel.products import products_of

if TYPE_CHECKING:
    from typing_extensions import Required, Self, Unpack

Initial = Normal | Constant | str | None


class LinearArguments(TypedDict, total=False):
    """The arguments that all linears of this module have, as `ParallelLinear` explains them."""

    config: Required[ModelConfig]
    init_method: Initial
    bias: bool
    stride: int
    skip_bias_add: bool
    skip_weight_param_allocation: bool
    bias_init: Initial
    param_init_dtype: Dtype | None
    compute_dtype: Dtype | None
    is_expert: bool
    transpose_b: bool
    keep_master_weight_for_test: bool
    embedding_activation_buffer: None
    grad_output_buffer: None
    tp_comm_buffer_name: None


FIXED = {
    "is_expert": False,
    "transpose_b": True,
    "keep_master_weight_for_test": False,
    "embedding_activation_buffer": None,
    "grad_output_buffer": None,
    "tp_comm_buffer_name": None,
}
"""Arguments of Megatron's linears, with the only value that they can have here; any other raises ValueError."""


def _check_fixed(layer: str, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if name not in LinearArguments.__annotations__:
            raise TypeError(f"{layer} has no argument {name!r}")
        if name in FIXED and value is not FIXED[name]:
            raise ValueError(f"{layer}: {name}={value!r} is not available; leave it out")


def linear_block(
    cut_axis: int | None,
    input_size: int,
    output_size: int,
    *,
    config: ModelConfig,
    init_method: Initial = None,
    bias: bool = True,
    stride: int = 1,
    skip_weight_param_allocation: bool = False,
    bias_init: Initial = "zeros",
    param_init_dtype: Dtype | None = None,
    **others: Any,
) -> Linear:
    """The block that a linear's arguments describe, as `ParallelLinear` explains them. cut_axis: of the weight [o, i];
    None: it is whole on every rank. others: arguments of a linear that no block has, ignored here."""
    std = config.initial_std
    return Linear(
        input_size,
        output_size,
        cut_axis,
        by_name(init_method or "normal", std),
        type_name(param_init_dtype or config.params_dtype),
        bias=bias,
        bias_initial=by_name(bias_init or "zeros", std),
        parts=stride,
        allocates_weight=not skip_weight_param_allocation,
        partial_over=between_regions(config),
    )


class ParallelLinear(nn.Cell):
    """The base of linears over the tensor-parallel group: a weight [o, i], cut along the class's `cut_axis` (None:
    whole), and a bias [o].

    Args:
        input_size, output_size: i and o of the whole layer; t must divide each of the `stride` parts of the one that is
            cut.
        block: the block that describes the linear, in place of the sizes, init_method, bias, stride,
            skip_weight_param_allocation, bias_init and param_init_dtype; by default made of them.
        copied: for a block without a weight, the spec of another module's weight, of which this layer then has a copy
            as a parameter of its own.
        config: the ModelConfig.
        init_method: initial values of the weight; None: normal with `config.initial_std`.
        bias: whether the layer has a bias.
        stride: number of fused equal parts along the cut axis, each cut on its own: a rank has a slice of every part.
        skip_weight_param_allocation: have no weight; a ColumnParallelLinear's caller passes one (tied embeddings).
        bias_init: initial values of the bias.
        param_init_dtype, compute_dtype: types of the parameters, and of the input as it is multiplied and the result;
            they default to the config's.
        skip_bias_add: return the bias instead of adding it, for a caller that fuses the addition.
        is_expert, transpose_b and the other names in `FIXED`: Megatron's; a value other than the one given there raises
            ValueError, an unknown name TypeError.
    """

    cut_axis: int | None

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        block: Linear | None = None,
        copied: ParameterSpec | None = None,
        **common: Unpack[LinearArguments],
    ) -> None:
        super().__init__()
        _check_fixed(type(self).__name__, common)
        config = common["config"]
        self.compute_dtype = type_of(common.get("compute_dtype") or config.compute_dtype)
        self.boundary, self.skip_bias_add = Boundary.of(config), common.get("skip_bias_add", False)
        block = linear_block(self.cut_axis, input_size, output_size, **common) if block is None else block
        specs = block.parameters() if copied is None else {"weight": copied, **block.parameters()}
        parameters = {name: make_parameter(*spec) for name, spec in specs.items()}
        self.weight, self.bias = parameters.get("weight"), parameters.get("bias")
        self.adapter, self.products = AdapterOfLinear.of(block, parameters), products_of(block.recipe, block.rounds)
        self._is_fused = block.parts > 1 or len(block.widths) > 1

    @classmethod
    def of(cls, block: Linear, config: ModelConfig, **arguments: Any) -> Self:
        """The cell of a block's linear; `arguments` are those that are no part of the block, such as skip_bias_add."""
        assert block.cut_axis == cls.cut_axis, f"{cls.__name__} of {block}"
        return cls(block.input_size, block.output_size, config=config, block=block, **arguments)

    def _check_whole_features(self, argument: str) -> None:
        """Raise ValueError if this argument, by which the features along the cut axis are whole outside of the layer,
        in the order of the ranks, does not go with fused parts, of which each rank has slices."""
        if self._is_fused and self.boundary.group.size > 1:
            raise ValueError(
                f"{type(self).__name__}: {argument} with fused parts (stride above 1) on "
                f"{self.boundary.group.size} tensor-parallel ranks: each rank has a slice of every part, so its "
                f"features do not lie side by side; leave {argument} or the stride out"
            )

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, boundary: Boundary, within: Boundary) -> Tensor:
        """x W^T + b, which stays inside of `boundary`, for an x as it lies outside of it, plus the adapter's product if
        there is one; within: the boundary that gives the positions of x inside, for the adapter's dropout."""
        if self.adapter is None:
            return linear_with_grad_accumulation_and_async_allreduce(x, weight, bias, boundary, self.products)
        return self.adapter(x, weight, bias, boundary, within, self.products)


class ColumnParallelLinear(ParallelLinear):
    """A linear whose output features are cut: W = [W_1; ...; W_t], rank r computes x W_r^T; with `stride` W_r has a
    slice of each part.

    Args besides those of `ParallelLinear`:
        gather_output: gather the whole output on every rank; otherwise each keeps its [..., o/t]. ValueError with
            fused parts on several ranks.
        disable_grad_reduce: leave the input's gradient unsummed over the ranks; the caller sums it. ValueError with
            sequence parallelism over several ranks.
    """

    cut_axis = COLUMNS

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        gather_output: bool = False,
        disable_grad_reduce: bool = False,
        block: Linear | None = None,
        **common: Unpack[LinearArguments],
    ) -> None:
        super().__init__(input_size, output_size, block=block, **common)
        self.gather_output = gather_output
        if gather_output:
            self._check_whole_features("gather_output=True")
        if disable_grad_reduce:
            if self.boundary.cuts_sequence:
                raise ValueError(
                    "ColumnParallelLinear: disable_grad_reduce=True with --sequence-parallel: the gradient of a shard "
                    "of the sequence can only be the sum's shard; leave one of them out"
                )
            self.boundary = self.boundary.inside()

    def construct(self, x: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x [s, b, i], with sequence parallelism [s/t, b, i] -> ([s, b, o/t], or [s, b, o] when gathered; the bias
        [o/t], if there is one and it was not added, else None). weight [o/t, i]: used instead of the layer's own; a
        layer that has none (skip_weight_param_allocation) raises ValueError without this one."""
        weight = self.weight if weight is None else weight
        if weight is None:
            raise ValueError("ColumnParallelLinear was built with skip_weight_param_allocation=True: pass a weight")
        added = None if self.skip_bias_add else self.bias
        x = cast_made_again(x, self.compute_dtype)
        y = self.product(x, weight, added, self.boundary, self.boundary.inside())
        if self.gather_output:
            y = gather_from_tensor_model_parallel_region(y, self.boundary.group)
        return y, self.bias if self.skip_bias_add else None


class RowParallelLinear(ParallelLinear):
    """A linear whose input features are cut: rank r computes x_r W_r^T, and the sum over ranks is the output.

    The bias is whole on every rank and belongs after the sum; with sequence parallelism each rank adds it to its shard
    of the sequence, so that its gradient is partial.

    Args besides those of `ParallelLinear`:
        input_is_parallel: the input is already cut, [..., i/t]; False: it is whole, and each rank takes its slice
            (on several ranks ValueError with sequence parallelism or with fused parts).
        skip_bias_add: as in `ParallelLinear`, but True unless given.
    """

    cut_axis = ROWS

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        input_is_parallel: bool = True,
        block: Linear | None = None,
        **common: Unpack[LinearArguments],
    ) -> None:
        common.setdefault("skip_bias_add", True)
        super().__init__(input_size, output_size, block=block, **common)
        self.input_is_parallel = input_is_parallel
        if self.boundary.cuts_sequence and not input_is_parallel:
            raise ValueError(
                "RowParallelLinear: input_is_parallel=False with --sequence-parallel: a whole input would be cut along "
                "the sequence; pass an input that is cut by features"
            )
        if not input_is_parallel:
            self._check_whole_features("input_is_parallel=False")

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [s, b, i/t], or whole [s, b, i] without input_is_parallel -> ([s, b, o], with sequence parallelism [s/t, b,
        o]; the bias [o], if there is one and it was not added, else None)."""
        group = self.boundary.group
        x = cast_made_again(x, self.compute_dtype)
        if not self.input_is_parallel:
            x = scatter_to_tensor_model_parallel_region(x, group)
        inside = self.boundary.inside()
        partial_y = self.product(x, self.weight, None, inside, inside)
        y = self.boundary.exit(partial_y)
        if self.skip_bias_add:
            return y, self.bias
        return (y if self.bias is None else kernels.bias_dropout_add(y, self.bias)), None


class DuplicatedLinear(ParallelLinear):
    """A linear that every rank has whole and applies, without any message, to activations between two tensor-parallel
    regions (Megatron's "duplicated"): to its part of the sequence, so that the weight's gradient is partial, or to what
    all ranks have alike."""

    cut_axis = None

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [s, b, i], with sequence parallelism [s/t, b, i] -> (the same leading shape with o; the bias [o], if there
        is one and it was not added, else None)."""
        x, added = cast_made_again(x, self.compute_dtype), None if self.skip_bias_add else self.bias
        y = self.product(x, self.weight, added, self.boundary.inside(), self.boundary)
        return y, self.bias if self.skip_bias_add else None


class VocabParallelEmbedding(nn.Cell):
    """An embedding whose vocabulary is cut: rank r has v/t rows; for other ranks' tokens it gives zeros, and the ranks'
    results are summed.

    Args:
        num_embeddings, embedding_dim: v (t must divide it) and h.
        init_method: initial values; None: normal with `config.embedding_init_method_std`.
        reduce_scatter_embeddings: ids are [s, ...]; give each rank its shard of the sum's sequence, [s/t, ..., h].
        config: the ModelConfig.
        table: the block that describes the embedding; by default made of the arguments, with rows of
            `param_init_dtype` (None: `config.embedding_init_dtype`).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: Initial = None,
        reduce_scatter_embeddings: bool = False,
        config: ModelConfig,
        param_init_dtype: Dtype | None = None,
        table: EmbeddingTable | None = None,
    ) -> None:
        super().__init__()
        self.combine = (
            reduce_scatter_to_sequence_parallel_region
            if reduce_scatter_embeddings
            else reduce_from_tensor_model_parallel_region
        )
        self.group = parallel_state.get_tensor_model_parallel_group()
        if table is None:
            initial = by_name(init_method or "normal", config.embedding_init_method_std)
            dtype = type_name(param_init_dtype or config.embedding_init_dtype)
            table = EmbeddingTable(
                num_embeddings, embedding_dim, initial, dtype, cuts=(Cut(0),), role="embedding or output"
            )
        self.weight = make_parameter(*table.parameters()["weight"])
        self.first_id = self.group.rank * self.weight.shape[0]

    @classmethod
    def of(cls, table: EmbeddingTable, config: ModelConfig, reduce_scatter_embeddings: bool = False) -> Self:
        """The cell of an embedding that the block `table` describes. Its weight is not marked as shared with the output
        layer, even if the table's `shared_over` says so."""
        return cls(
            table.rows,
            table.hidden_size,
            reduce_scatter_embeddings=reduce_scatter_embeddings,
            config=config,
            table=replace(table, shared_over=None),
        )

    def construct(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., h], or with reduce_scatter_embeddings ids [s, ...] -> [s/t, ..., h]."""
        return self.combine(kernels.embedding(ids, self.weight, self.first_id), self.group)
