"""Tensor-parallel layers: linears cut by columns or rows, and an embedding cut over the vocabulary.

"Megatron-LM" (Shoeybi et al., 2019), section 3. s sequence, b batch, i input size, o output size, h hidden size,
t tensor-parallel size, v vocabulary.
"""

from __future__ import annotations

from mindspore import Tensor, nn

from parallel_core.initial_values import Constant, Normal, by_name
from parallel_core.sharding import ShardSpec
from pynative import kernels, parallel_state
from pynative.autograd import Function, add_weight_gradient
from pynative.collectives import Group
from pynative.parameter import Dtype, check_one_type, make_parameter
from pynative.tensor_parallel.mappings import (
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    scatter_to_tensor_model_parallel_region,
)

Initial = Normal | Constant | str | None


class LinearWithGradAccumulationAndAsyncCommunication(Function):
    """y = x W^T + b, whose backward starts the sum of the input's gradient over a group before it computes W's."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.group, ctx.bias = group, bias
        ctx.save_for_backward(x, weight)
        return kernels.linear_forward(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        bias, group = ctx.bias, ctx.group
        reduction = None
        dx = kernels.linear_input_gradient(dy, weight) if ctx.needs_input_grad[0] else None
        if dx is not None and group is not None and group.size > 1:
            reduction = group.all_reduce(dx, async_op=True)
        dw = db = None
        if ctx.needs_input_grad[1]:
            dw = add_weight_gradient(weight, lambda out: kernels.linear_weight_gradient(dy, x, out))
        if bias is not None and ctx.needs_input_grad[2]:
            db = add_weight_gradient(bias, lambda out: kernels.bias_gradient(dy, out))
        return reduction.wait() if reduction else dx, dw, db, None


def linear_with_grad_accumulation_and_async_allreduce(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, group: Group | None = None
) -> Tensor:
    """x [..., i], weight [o, i], bias [o] -> [..., o]; the gradient of x is summed over `group`."""
    return LinearWithGradAccumulationAndAsyncCommunication.apply(x, weight, bias, group)


def _refuse(layer: str, **unsupported: bool) -> None:
    for argument, given in unsupported.items():
        if given:
            raise ValueError(f"{layer}: {argument} is not available; leave it at its default")


class ColumnParallelLinear(nn.Cell):
    """A linear whose output features are cut: W = [W_1; ...; W_t], rank r computes x W_r^T.

    Args:
        input_size, output_size: i and o of the whole layer; t must divide o.
        config: the ModelConfig.
        init_method: initial values of the weight; None: normal with `config.init_method_std`.
        bias: whether there is one.
        gather_output: gather the whole output on every rank; otherwise each keeps its [..., o/t].
        stride: number of fused equal parts along o, each cut on its own.
        skip_bias_add: return the bias instead of adding it, for a caller that fuses the addition.
        skip_weight_param_allocation: have no weight; the caller passes one (tied embeddings).
        disable_grad_reduce: leave the input's gradient unsummed; the caller does it.
        bias_init: initial values of the bias.
        param_init_dtype, compute_dtype: default to the config's.
        transpose_b: weights are stored [o, i]; False is refused.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config,
        init_method: Initial = None,
        bias: bool = True,
        gather_output: bool = False,
        stride: int = 1,
        skip_bias_add: bool = False,
        skip_weight_param_allocation: bool = False,
        is_expert: bool = False,
        disable_grad_reduce: bool = False,
        bias_init: Initial = "zeros",
        param_init_dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
        transpose_b: bool = True,
    ) -> None:
        super().__init__()
        _refuse("ColumnParallelLinear", is_expert=is_expert, transpose_b=not transpose_b)
        self.gather_output = gather_output
        self.skip_bias_add = skip_bias_add
        self.group = parallel_state.get_tensor_model_parallel_group()
        self.gradient_group = None if disable_grad_reduce else self.group
        dtype = param_init_dtype or config.params_dtype
        check_one_type("ColumnParallelLinear", dtype, compute_dtype or config.compute_dtype)
        std = config.init_method_std
        spec = ShardSpec(shape=(output_size, input_size), axis=0, parts=stride)
        self.weight = self.bias = None
        if not skip_weight_param_allocation:
            self.weight = make_parameter(spec, by_name(init_method or "normal", std), dtype)
        if bias:
            bias_spec = ShardSpec(shape=(output_size,), axis=0, parts=stride)
            self.bias = make_parameter(bias_spec, by_name(bias_init or "zeros", std), dtype)

    def construct(self, x: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x [s, b, i] -> ([s, b, o/t], or [s, b, o] when gathered; the bias [o/t] if it was not added)."""
        weight = self.weight if weight is None else weight
        if weight is None:
            raise ValueError("ColumnParallelLinear was built with skip_weight_param_allocation=True: pass a weight")
        added = None if self.skip_bias_add else self.bias
        y = linear_with_grad_accumulation_and_async_allreduce(x, weight, added, self.gradient_group)
        if self.gather_output:
            y = gather_from_tensor_model_parallel_region(y, self.group)
        return y, self.bias if self.skip_bias_add else None


class RowParallelLinear(nn.Cell):
    """A linear whose input features are cut: rank r computes x_r W_r^T, and the sum over ranks is the output.

    Args as for ColumnParallelLinear, and:
        input_is_parallel: the input is already cut, [..., i/t]; otherwise each rank takes its slice.
    The bias is whole on every rank and belongs after the sum.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config,
        init_method: Initial = None,
        bias: bool = True,
        input_is_parallel: bool = True,
        skip_bias_add: bool = True,
        stride: int = 1,
        is_expert: bool = False,
        bias_init: Initial = "zeros",
        param_init_dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
        transpose_b: bool = True,
    ) -> None:
        super().__init__()
        _refuse("RowParallelLinear", is_expert=is_expert, transpose_b=not transpose_b)
        self.input_is_parallel = input_is_parallel
        self.skip_bias_add = skip_bias_add
        self.group = parallel_state.get_tensor_model_parallel_group()
        dtype = param_init_dtype or config.params_dtype
        check_one_type("RowParallelLinear", dtype, compute_dtype or config.compute_dtype)
        std = config.init_method_std
        spec = ShardSpec(shape=(output_size, input_size), axis=1, parts=stride)
        self.weight = make_parameter(spec, by_name(init_method or "normal", std), dtype)
        self.bias = None
        if bias:
            self.bias = make_parameter(ShardSpec(shape=(output_size,)), by_name(bias_init or "zeros", std), dtype)

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [s, b, i/t] -> ([s, b, o]; the bias [o] if it was not added)."""
        if not self.input_is_parallel:
            x = scatter_to_tensor_model_parallel_region(x, self.group)
        y = linear_with_grad_accumulation_and_async_allreduce(x, self.weight)
        y = reduce_from_tensor_model_parallel_region(y, self.group)
        if self.bias is not None and not self.skip_bias_add:
            y = y + self.bias
        return y, self.bias if self.skip_bias_add else None


class VocabParallelEmbedding(nn.Cell):
    """An embedding whose vocabulary is cut: rank r holds v/t rows; the others' tokens are zeros here, then summed.

    Args:
        num_embeddings, embedding_dim: v (t must divide it) and h.
        init_method: initial values; None: normal with `config.init_method_std`.
        config: the ModelConfig.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: Initial = None,
        reduce_scatter_embeddings: bool = False,
        config,
        param_init_dtype: Dtype | None = None,
    ) -> None:
        super().__init__()
        _refuse("VocabParallelEmbedding", reduce_scatter_embeddings=reduce_scatter_embeddings)
        self.group = parallel_state.get_tensor_model_parallel_group()
        spec = ShardSpec(shape=(num_embeddings, embedding_dim), axis=0)
        dtype = param_init_dtype or config.embedding_init_dtype or config.params_dtype
        std = config.init_method_std if config.embedding_init_method_std is None else config.embedding_init_method_std
        self.weight = make_parameter(spec, by_name(init_method or "normal", std), dtype)
        self.first_id = self.group.rank * self.weight.shape[0]

    def construct(self, ids: Tensor) -> Tensor:
        """ids [...] -> [..., h]."""
        return reduce_from_tensor_model_parallel_region(kernels.embedding(ids, self.weight, self.first_id), self.group)
