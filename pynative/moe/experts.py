"""A rank's experts, computed one after the other, or all in grouped products.

R rows of tokens, sorted by expert; h hidden size, f width of an expert, t' expert-tensor-parallel size.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.moe.token_dispatch import Copies, one_row_at_least
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels, parallel_state
from pynative.parameter import make_parameter
from pynative.tape.autograd import Function, Moved, add_weight_gradients
from pynative.tensor_parallel.linear import AdapterOfLinear
from pynative.tensor_parallel.made_again import fork_made_again, made_again
from pynative.tensor_parallel.products import GROUPED, Counts, GroupedProducts, grouped_products, products_of
from pynative.tensor_parallel.recompute import NOTHING, run_part

Move: TypeAlias = Callable[[Tensor], Tensor]


def copied_rows(x: Tensor, copies: Copies) -> Tensor:
    """x [n, ...] -> [r, ...], r the length of copies.sources: row i is the row copies.sources[i] of x, or zeros for -1.
    On the tape: the gradient of a row of x is the sum of its copies' gradients."""
    shape = tuple(x.shape)
    copy = partial(kernels.gather_rows, sources=copies.sources, row=shape[1:])
    return Moved.apply(x, copy, partial(kernels.sum_rows, places=copies.places, shape=shape))


class _GroupedLinear(Function):
    """Each row of x times the transposed weight of its group."""

    def forward(ctx: Any, x: Any, counts: Any, products: Any, *weights: Any) -> Any:
        ctx.counts, ctx.weights, ctx.products, ctx.made_again = counts, weights, products, made_again(x)
        is_kept = any(ctx.inputs_need_gradients[3:]) and not ctx.made_again
        ctx.save_for_backward(*((x,) if is_kept else ()))
        return products.forward(x, weights, counts)

    def backward(ctx: Any, dy: Any) -> Any:
        weights, counts, products = ctx.weights, ctx.counts, ctx.products
        needs_dx, _, _, *needs_dw = ctx.inputs_need_gradients
        dx = products.input_gradient(dy, weights, counts) if needs_dx else None
        if not any(needs_dw):
            return dx, None, None, *([None] * len(weights))
        x = ctx.made_again() if ctx.made_again else ctx.saved_tensors[0]
        of_weights = add_weight_gradients(weights, partial(products.weight_gradients, dy, x, counts))
        return dx, None, None, *of_weights


def grouped_linear(x: Tensor, weights: Sequence[Tensor], counts: Counts, products: GroupedProducts = GROUPED) -> Tensor:
    """x [R, i], sorted by group, counts[j] rows of group j, weights [o, i] of the groups -> [R, o]: each row times the
    transposed weight of its group; on the tape. products: the functions that compute the products."""
    return _GroupedLinear.apply(x, tuple(map(int, counts)), products, *weights)


class ExpertLinear(nn.Cell):
    """The parameters of one of an expert's two linears; `Experts` computes with them."""

    def __init__(self, block: blocks.ExpertLinear) -> None:
        super().__init__()
        parameters = {name: make_parameter(*spec) for name, spec in block.parameters().items()}
        self.weight, self.bias = parameters["weight"], parameters.get("bias")
        self.adapter, self.products = AdapterOfLinear.of(block, parameters), products_of(block.recipe, block.rounds)


def _product(linears: Sequence[ExpertLinear], x: Tensor, counts: Counts) -> Tensor:
    """x [R, i], sorted by linear -> [R, o], with the products of the linears' adapters added; without biases."""
    weights, adapters = [linear.weight for linear in linears], [one.adapter for one in linears if one.adapter]
    products = grouped_products([linear.products for linear in linears])
    if not adapters:
        return grouped_linear(x, weights, counts, products)
    x, beside = fork_made_again(x)
    narrow = grouped_linear(beside, [adapter.lora_a for adapter in adapters], counts)
    added = grouped_linear(kernels.scale(narrow, adapters[0].scale), [one.lora_b for one in adapters], counts)
    return kernels.bias_dropout_add(added, None, grouped_linear(x, weights, counts, products))


class Expert(nn.Cell):
    """The parameters of one expert; `Experts` computes with them."""

    def __init__(self, block: blocks.Expert) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = ExpertLinear(block.linear_fc1), ExpertLinear(block.linear_fc2)


def check_local_experts(count: int, numbers: Sequence[int]) -> None:
    """Raise ValueError if `count`, the number of experts that a script gives a rank, is not that of `numbers`, the
    experts that this rank has by the configuration."""
    if count != len(numbers):
        raise ValueError(f"num_local_experts={count}: this rank has {len(numbers)} experts, {list(numbers)}")


class Experts(nn.Cell):
    """This rank's experts: linear_fc2(probability x activation(linear_fc1(x))) of each row with the weights of its
    expert; a bias of linear_fc2 is multiplied by the probability, too.

    With expert tensor parallelism the result is an addend of the sum over the ranks that share the expert.

    Args:
        num_local_experts: the number of this rank's experts; ValueError if by `submodules` it is another.
        submodules: their block, by default what the configuration says.
        recomputed: the parts of this cell that are recomputed in the backward, by default none.
    """

    def __init__(
        self,
        num_local_experts: int,
        config: ModelConfig,
        submodules: blocks.Experts | None = None,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__()
        self.recomputed = recomputed
        block = blocks.Experts.of(config) if submodules is None else submodules
        self.safe_tokens = config.moe_config.enable_gmm_safe_tokens
        self.operator = block.expert.activation.operator
        self.adds_bias = parallel_state.get_expert_tensor_parallel_rank() == 0
        numbers = block.local(parallel_state.get_expert_model_parallel_rank())
        check_local_experts(num_local_experts, numbers)
        self.local_experts = nn.Cell()
        for number in numbers:
            self.local_experts.insert_child_to_cell(str(number), Expert(block.expert))
        self.experts: list[Expert] = list(self.local_experts.cells())

    def construct(
        self, hidden_states: Tensor, tokens_per_expert: Counts | Tensor, probs: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """hidden_states [R, h] sorted by expert, the number of rows of each expert, and the rows' probabilities,
        float32 [R] (None: ones) -> ([R, h], None: no bias is left to be added)."""
        given = tokens_per_expert.asnumpy() if isinstance(tokens_per_expert, Tensor) else tokens_per_expert
        if probs is None:
            probs = Tensor.from_numpy(np.ones(len(hidden_states), np.float32))
        return self._of_all(hidden_states, probs, [int(count) for count in given]), None

    @abstractmethod
    def _of_all(self, tokens: Tensor, probs: Tensor, counts: Counts) -> Tensor:
        """tokens [R, h] sorted by expert, probs float32 [R], counts: the rows of each expert -> results [R, h]."""

    def through(self, experts: Sequence[Expert], tokens: Tensor, probs: Tensor, counts: Counts) -> Tensor:
        """Results [R, h] of some of the experts, for their rows [R, h], sorted, the rows' probabilities [R] and the
        number of rows of each."""
        first, second = [expert.linear_fc1 for expert in experts], [expert.linear_fc2 for expert in experts]
        intermediate = _product(first, tokens, counts)
        if first[0].bias is not None:
            intermediate = kernels.add_grouped_bias(intermediate, [linear.bias for linear in first], counts)
        output = _product(second, run_part(self, "activation", self._activate, intermediate, probs), counts)
        if second[0].bias is not None and self.adds_bias:
            output = kernels.add_grouped_bias(output, [linear.bias for linear in second], counts, probs)
        return output

    def _activate(self, intermediate: Tensor, probs: Tensor) -> Tensor:
        """[R, f/t'] (gated: [R, 2 f/t']) and the rows' probabilities [R] -> [R, f/t'], multiplied by them."""
        return kernels.weighted_activation(intermediate, probs, self.operator)


class SequentialMLP(Experts):
    """A rank's experts, computed one after the other."""

    def _of_all(self, tokens: Tensor, probs: Tensor, counts: Counts) -> Tensor:
        rows = zip(kernels.split_rows(tokens, counts), kernels.split_rows(probs, counts), strict=True)
        return kernels.join_rows(
            [
                self.through([expert], own_tokens, own_probs, [count])
                for expert, (own_tokens, own_probs), count in zip(self.experts, rows, counts, strict=True)
            ]
        )


class GroupedMLP(Experts):
    """A rank's experts, computed in grouped products (--moe-grouped-gemm; MegaBlocks, Gale et al., 2023)."""

    def _of_all(self, tokens: Tensor, probs: Tensor, counts: Counts) -> Tensor:
        if not self.safe_tokens or all(counts):
            return self.through(self.experts, tokens, probs, counts)
        filled, rows = one_row_at_least(np.asarray(counts))
        tokens, probs = copied_rows(tokens, filled), copied_rows(probs, filled)
        return copied_rows(self.through(self.experts, tokens, probs, rows.tolist()), filled.undone)


def experts_of(config: ModelConfig, block: blocks.Experts, recomputed: CellRecompute) -> SequentialMLP | GroupedMLP:
    """The cell of a rank's experts: GroupedMLP with --moe-grouped-gemm, else SequentialMLP."""
    kind = GroupedMLP if config.moe_config.moe_grouped_gemm else SequentialMLP
    return kind(len(block.local(0)), config, block, recomputed)
