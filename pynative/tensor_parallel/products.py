"""The three products of a linear, y = x W^T, dx = dy W and dW = dy^T x: in the type of x, with weights that are rounded
to MXFP4, or with operands that are rounded to 8 bits; and those of several linears. i input size, o output size.

Operands rounded to 8 bits are held in float32 and multiplied in it, as 8-bit matrix units accumulate. An operand is
rounded anew for each product, from what is kept anyway.
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
    """The products of a linear, y = x W^T, dx = dy W and dW = dy^T x; the weight is cast to the type of x or dy anew
    for each product. They are for the inside of a tape's `Function`, where nothing is recorded."""

    def weight(self, weight: Tensor, like: Tensor, summed: int = 1) -> Tensor:
        """The weight [o, i] as an operand, cast to the type of `like`, the other operand. summed: the axis of the
        weight over which the product sums."""
        return kernels.cast(weight, like.dtype)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + bias [..., o], from x [..., i], W [o, i] and bias [o] or None."""
        bias = None if bias is None else kernels.cast(bias, x.dtype)
        return kernels.linear_forward(x, self.weight(weight, x), bias)

    def input_gradient(self, dy: Tensor, weight: Tensor) -> Tensor:
        """dy W [..., i], from dy [..., o] and W [o, i]."""
        return kernels.linear_input_gradient(dy, self.weight(weight, dy, 0))

    def weight_gradient(self, dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
        """dy^T x [o, i], from dy [..., o] and x [..., i]. If `out` is given, it is returned after the product was
        written into it, or with `accumulate` added to it."""
        return kernels.linear_weight_gradient(dy, x, out, accumulate)

    def grouped(self, members: Sequence[Any]) -> "GroupedProducts":
        """The grouped products of several linears, whose own products are `members`, all of this class."""
        return GROUPED


PLAIN = Products()


class RoundedWeights(Products):
    """The products with weights rounded to MXFP4, in blocks along `axis` of [o, i]; those that `grouped` returns have
    blocks along axis 0. The gradient passes through the rounding unchanged (a straight-through estimate; Bengio et al.,
    2013)."""

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis

    def weight(self, weight: Tensor, like: Tensor, summed: int = 1) -> Tensor:
        return kernels.cast(kernels.mxfp4(weight, self.axis), like.dtype)

    def grouped(self, members: Sequence[Any]) -> "GroupedProducts":
        return GROUPED_ROUNDED_WEIGHTS


class Float8Products(Products):
    """The products of operands rounded to 8 bits by a recipe; dW is of unrounded ones if the recipe says so. `scales`:
    with delayed scaling the scale of each operand; empty where scales follow from the operands themselves."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.scales: dict[str, DelayedScale] = {}
        if recipe.is_delayed:
            self.scales = {operand: recipe.delayed_scale(operand) for operand in OPERANDS}

    def grouped(self, members: Sequence[Any]) -> "GroupedProducts":
        return GroupedFloat8Products(members)

    def rounded(self, x: Tensor, operand: str, summed: int = 1) -> Tensor:
        """An operand's values scaled, rounded to 8 bits and divided by the scale again, as float32, for a product that
        sums over its last axis (summed 1) or over all others (0). operand: INPUT, WEIGHT or GRADIENT; with delayed
        scaling its largest magnitude is noted for later scales, unless it has no elements."""
        if not x.size:
            return kernels.cast(x, FLOAT32)
        delayed = self.scales.get(operand)
        if delayed is None:
            return kernels.quantised(x, self.recipe.rounding(operand, summed))
        delayed.see(kernels.largest_magnitude(x))
        return kernels.quantised(x, self.recipe.rounding(operand, summed), delayed.scale)

    def weight(self, weight: Tensor, like: Tensor, summed: int = 1) -> Tensor:
        """The weight, cast to the type of `like` and then rounded to 8 bits, as float32."""
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
    """`out`, of any type, after the gradient was written into it, or with `accumulate` added."""
    if not accumulate:
        kernels.fill_(out, 0.0)
    kernels.add_(out, kernels.cast(gradient, out.dtype))
    return out


def products_of(recipe: Recipe | None, rounds_weight: bool) -> Products:
    """The products of a linear: of operands rounded to 8 bits if there is a recipe, else of the weight rounded to MXFP4
    if rounds_weight, else `Products` itself."""
    if recipe is not None:
        return Float8Products(recipe)
    return RoundedWeights() if rounds_weight else PLAIN


class GroupedProducts:
    """The products of several linears: the rows of x [R, i] are sorted by linear, counts[j] of them are linear j's, and
    weights[j] [o, i] is its weight. of_each: the products of a single linear, by which each weight is cast or
    rounded."""

    def __init__(self, of_each: Products = PLAIN) -> None:
        self._of_each = of_each

    def _weights(self, weights: Sequence[Tensor], like: Tensor, summed: int) -> list[Tensor]:
        return [self._of_each.weight(weight, like, summed) for weight in weights]

    def forward(self, x: Tensor, weights: Sequence[Tensor], counts: Counts) -> Tensor:
        """The rows of x [R, i] times their linear's weight^T -> [R, o]."""
        return kernels.grouped_linear_forward(x, self._weights(weights, x, 1), counts)

    def input_gradient(self, dy: Tensor, weights: Sequence[Tensor], counts: Counts) -> Tensor:
        """The rows of dy [R, o] times their linear's weight -> [R, i]."""
        return kernels.grouped_linear_input_gradient(dy, self._weights(weights, dy, 0), counts)

    def weight_gradients(self, dy: Tensor, x: Tensor, counts: Counts, out: Outs, accumulate: Sequence[bool]) -> Any:
        """A list with dy^T x [o, i] of each linear's rows (zeros without rows), written into the linear's entry of
        `out` if that is given, or where its entry of `accumulate` is true added to it."""
        return kernels.grouped_linear_weight_gradient(dy, x, counts, out, accumulate)


GROUPED = GroupedProducts()
GROUPED_ROUNDED_WEIGHTS = GroupedProducts(RoundedWeights(axis=0))
"""MXFP4 weights of experts, in blocks along axis 0, the outputs: MindSpeed stores experts' weights with the outputs in
a row, so that these share a scale."""


class GroupedFloat8Products(GroupedProducts):
    """The products of several linears with operands rounded to 8 bits, each linear's rows by its own scales; the
    weights' gradients are of unrounded operands if the recipe says so."""

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
    """The grouped products of one linear or more. members: the linears' own products, all of one class."""
    return members[0].grouped(members)
