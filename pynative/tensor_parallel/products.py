"""The three products of a linear, y = x W^T, dx = dy W and dW = dy^T x: in the type of x, or of operands that are
rounded to 8 bits. i input size, o output size.

Rounded operands are float32 and so are products of them, which is how units of 8 bits add up. An operand is rounded
each time anew, from what is kept anyway, so that a part that runs again finds the values of its first run.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import mindspore
from mindspore import Tensor

from parallel_core.numerics.float8_recipes import GRADIENT, INPUT, OPERANDS, WEIGHT, DelayedScale, Recipe
from pynative import kernels

FLOAT32 = mindspore.float32
Counts = Sequence[int]
Outs = Sequence[Tensor | None]


class Products:
    """The products in the type of x; the weight is cast to it, each time anew. Not recorded."""

    def weight(self, weight: Tensor, like: Tensor, summed: int = 1) -> Tensor:
        """A weight [o, i] for a product with a tensor like this one, which sums over the weight's axis 0 or 1."""
        return kernels.cast(weight, like.dtype)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., i], W [o, i] and bias [o] -> [..., o]."""
        bias = None if bias is None else kernels.cast(bias, x.dtype)
        return kernels.linear_forward(x, self.weight(weight, x), bias)

    def input_gradient(self, dy: Tensor, weight: Tensor) -> Tensor:
        """dy [..., o], W [o, i] -> [..., i]."""
        return kernels.linear_input_gradient(dy, self.weight(weight, dy, 0))

    def weight_gradient(self, dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
        """dy [..., o], x [..., i] -> [o, i], as `kernels.linear_weight_gradient`."""
        return kernels.linear_weight_gradient(dy, x, out, accumulate)

    def grouped(self, members: Sequence[Any]) -> "GroupedProducts":
        """The products of several linears, each of which has such ones."""
        return GROUPED


PLAIN = Products()


class RoundedWeights(Products):
    """The products with weights of MXFP4's numbers, in blocks along an axis. The gradient that passes through is the
    weight's own (a straight-through estimate; Bengio et al., 2013)."""

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis

    def weight(self, weight: Tensor, like: Tensor, summed: int = 1) -> Tensor:
        return kernels.cast(kernels.mxfp4(weight, self.axis), like.dtype)

    def grouped(self, members: Sequence[Any]) -> "GroupedProducts":
        return GROUPED_ROUNDED_WEIGHTS


class Float8Products(Products):
    """The products of operands that are rounded to 8 bits. `scales` are the delayed ones; there are none where they
    follow from the operands themselves."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.scales: dict[str, DelayedScale] = {}
        if recipe.is_delayed:
            self.scales = {operand: recipe.delayed_scale(operand) for operand in OPERANDS}

    def grouped(self, members: Sequence[Any]) -> "GroupedProducts":
        return GroupedFloat8Products(members)

    def rounded(self, x: Tensor, operand: str, summed: int = 1) -> Tensor:
        """An operand, float32, for a product that sums over the last axis, or the others (0)."""
        if not x.size:
            return kernels.cast(x, FLOAT32)
        delayed = self.scales.get(operand)
        if delayed is None:
            return kernels.quantised(x, self.recipe.rounding(operand, summed))
        delayed.see(kernels.largest_magnitude(x))
        return kernels.quantised(x, self.recipe.rounding(operand, summed), delayed.scale)

    def weight(self, weight: Tensor, like: Tensor, summed: int = 1) -> Tensor:
        """A weight, which is rounded from the type that is computed in."""
        return self.rounded(kernels.cast(weight, like.dtype), WEIGHT, summed)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        wide = None if bias is None else kernels.cast(kernels.cast(bias, x.dtype), FLOAT32)
        y = kernels.linear_forward(self.rounded(x, INPUT), self.weight(weight, x), wide)
        return kernels.cast(y, x.dtype)

    def input_gradient(self, dy: Tensor, weight: Tensor) -> Tensor:
        dx = kernels.linear_input_gradient(self.rounded(dy, GRADIENT), self.weight(weight, dy, 0))
        return kernels.cast(dx, dy.dtype)

    def weight_gradient(self, dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
        if not self.recipe.rounds_weight_gradients:
            return super().weight_gradient(dy, x, out, accumulate)
        operands = self.rounded(dy, GRADIENT, 0), self.rounded(x, INPUT, 0)
        product = partial(kernels.linear_weight_gradient, *operands)
        return product(out, accumulate) if out is None or out.dtype == FLOAT32 else added(product(), out, accumulate)


def added(gradient: Tensor, out: Tensor, accumulate: bool) -> Tensor:
    """`out`, of any type, holding the gradient, or with it added."""
    if not accumulate:
        kernels.fill_(out, 0.0)
    kernels.add_(out, kernels.cast(gradient, out.dtype))
    return out


def products_of(recipe: Recipe | None, rounds_weight: bool) -> Products:
    """The products of one linear."""
    if recipe is not None:
        return Float8Products(recipe)
    return RoundedWeights() if rounds_weight else PLAIN


class GroupedProducts:
    """The same of several linears, each with its rows: x [R, i] sorted by linear, weights [o, i] of each. A weight is
    that of `of_each`, one linear's products."""

    def __init__(self, of_each: Products = PLAIN) -> None:
        self._of_each = of_each

    def _weights(self, weights: Sequence[Tensor], like: Tensor, summed: int) -> list[Tensor]:
        return [self._of_each.weight(weight, like, summed) for weight in weights]

    def forward(self, x: Tensor, weights: Sequence[Tensor], counts: Counts) -> Tensor:
        """x and weights -> [R, o]."""
        return kernels.grouped_linear_forward(x, self._weights(weights, x, 1), counts)

    def input_gradient(self, dy: Tensor, weights: Sequence[Tensor], counts: Counts) -> Tensor:
        """dy [R, o] and weights -> [R, i]."""
        return kernels.grouped_linear_input_gradient(dy, self._weights(weights, dy, 0), counts)

    def weight_gradients(self, dy: Tensor, x: Tensor, counts: Counts, out: Outs, accumulate: Sequence[bool]) -> Any:
        """dy and x -> [o, i] of each, as `kernels.grouped_linear_weight_gradient`."""
        return kernels.grouped_linear_weight_gradient(dy, x, counts, out, accumulate)


GROUPED = GroupedProducts()
GROUPED_ROUNDED_WEIGHTS = GroupedProducts(RoundedWeights(axis=0))
"""MindSpeed's experts lie with their results in a row, so that these share a scale."""


class GroupedFloat8Products(GroupedProducts):
    """The same of operands that are rounded to 8 bits, each linear's by themselves."""

    def __init__(self, members: Sequence[Float8Products]) -> None:
        super().__init__()
        self.members = members

    def _rounded(self, x: Tensor, counts: Counts, operand: str, summed: int = 1) -> Tensor:
        rows = zip(self.members, kernels.split_rows(x, counts), strict=True)
        return kernels.join_rows([member.rounded(own, operand, summed) for member, own in rows])

    def _weights(self, weights: Sequence[Tensor], like: Tensor, summed: int) -> list[Tensor]:
        pairs = zip(self.members, weights, strict=True)
        return [member.weight(weight, like, summed) for member, weight in pairs]

    def forward(self, x: Tensor, weights: Sequence[Tensor], counts: Counts) -> Tensor:
        rows = self._rounded(x, counts, INPUT)
        return kernels.cast(kernels.grouped_linear_forward(rows, self._weights(weights, x, 1), counts), x.dtype)

    def input_gradient(self, dy: Tensor, weights: Sequence[Tensor], counts: Counts) -> Tensor:
        rows = self._rounded(dy, counts, GRADIENT)
        return kernels.cast(
            kernels.grouped_linear_input_gradient(rows, self._weights(weights, dy, 0), counts), dy.dtype
        )

    def weight_gradients(self, dy: Tensor, x: Tensor, counts: Counts, out: Outs, accumulate: Sequence[bool]) -> Any:
        if not self.members[0].recipe.rounds_weight_gradients:
            return super().weight_gradients(dy, x, counts, out, accumulate)
        operands = self._rounded(dy, counts, GRADIENT, 0), self._rounded(x, counts, INPUT, 0)
        if all(memory is None or memory.dtype == FLOAT32 for memory in out):
            return super().weight_gradients(*operands, counts, out, accumulate)
        found = super().weight_gradients(*operands, counts, [None] * len(out), [False] * len(out))
        pairs = zip(found, out, accumulate, strict=True)
        return [added(gradient, memory, keeps) for gradient, memory, keeps in pairs]


def grouped_products(members: Sequence[Products]) -> GroupedProducts:
    """The products of several linears of one kind."""
    return members[0].grouped(members)
