"""Recipes of 8-bit training: the format and the scales of each operand of a linear's three products.

y = x W^T, dx = dy W, dW = dy^T x with x [r, i], W [o, i], dy [r, o]. Each operand is in two products. Blocks lie along
the axis that a product sums over, so that an operand is rounded for each of its products by itself; a weight in square
blocks, or an operand with one scale, is rounded alike for both. With --no-fp8-wgrad nothing is rounded for dW.
"""

from typing import NamedTuple

import numpy as np

from parallel_core.numerics.float8 import (
    E4M3,
    E5M2,
    LARGEST,
    Float8,
    Rounding,
    ScaleOf,
    exact_scale,
    lower_power,
    shared_exponent,
)

FORMATS: dict[str, tuple[Float8, Float8]] = {"e4m3": (E4M3, E4M3), "hybrid": (E4M3, E5M2)}
"""--fp8-format -> the format of inputs and weights, and that of gradients."""

INPUT, WEIGHT, GRADIENT = "input", "weight", "gradient"
OPERANDS = (INPUT, WEIGHT, GRADIENT)


class Scaling(NamedTuple):
    """The rule of the scales of a recipe (`scale_of`), and the values that share a scale: all of a tensor where `block`
    is None, else `block` neighbours along the axis that a product sums over; of a weight with `square_weights` a square
    of `block` rows and columns. is_delayed: whether a scale follows from the largest magnitudes of earlier steps
    (`DelayedScale`), not from the tensor's own."""

    scale_of: ScaleOf
    block: int | None = None
    """The number of neighbouring values along the summed axis that share a scale; None: one scale for a tensor."""
    square_weights: bool = False
    """Whether a block of a weight is square, `block` rows and columns, so that both of its products see the same
    values."""
    is_delayed: bool = False
    """Whether a scale follows from the largest magnitudes of earlier steps."""


SCALINGS = {
    "tensorwise": Scaling(exact_scale),
    "delayed": Scaling(exact_scale, is_delayed=True),
    "blockwise": Scaling(lower_power, 128, square_weights=True),
    "mxfp8": Scaling(shared_exponent, 32),
}
"""Value of --fp8-recipe -> the rule of the recipe's scales."""


class DelayedScale:
    """The scale of one operand from its largest magnitudes in the latest steps; 1 at first.

    Args:
        target: the number that the largest magnitude is to become under the scale.
        length: the largest number of magnitudes, one of a step, that are remembered, at least 1; 0 is not remembered.
        algorithm: the scale follows from the largest of the remembered magnitudes ("max"), or from the last one
            ("most_recent").

    `scale`: the present scale; `seen`: the largest magnitude that `see` has noted since `seen` was last set to 0, not a
    number if one of them was not; `history`: the remembered magnitudes, the oldest first.
    """

    def __init__(self, target: float, length: int, algorithm: str) -> None:
        self.target, self.length, self.algorithm = target, length, algorithm
        self.scale, self.seen = 1.0, 0.0
        self.history: list[float] = []

    def see(self, amax: float) -> None:
        """Note a largest magnitude: `seen` becomes it if it is larger, or not a number."""
        self.seen = float(np.maximum(self.seen, amax))

    def advance(self, amax: float) -> None:
        """Take `amax`, the largest magnitude of a step, into the history and set the scale for the next step; `seen` is
        left as it is. An `amax` of 0 is not remembered. The scale stays as it is where `amax` is 0, or where the
        magnitude from which it would follow is not finite."""
        if amax == 0:
            return
        self.history = [*self.history, amax][-self.length :]
        largest = float(np.fmax.reduce(self.history)) if self.algorithm == "max" else amax
        if np.isfinite(largest) and largest > 0:
            with np.errstate(over="ignore"):
                self.scale = float(np.minimum(np.float32(self.target) / np.float32(largest), LARGEST))


class Recipe(NamedTuple):
    """The rounding of a linear's operands in its three products, as flags ask for it. scaling, formats: keys of
    `SCALINGS` and of `FORMATS`. rounds_weight_gradients: whether the operands of a weight's gradient are rounded, too.
    For delayed scales alone: margin, under which the largest magnitude is to become the format's largest number x
    2^-margin; history, algorithm: `DelayedScale`'s length and algorithm."""

    scaling: str
    formats: str
    margin: int = 0
    history: int = 1
    algorithm: str = "most_recent"
    rounds_weight_gradients: bool = True
    """Whether the operands of a weight's gradient are rounded, too."""

    @property
    def is_delayed(self) -> bool:
        """Whether scales follow from the largest magnitudes of earlier steps."""
        return SCALINGS[self.scaling].is_delayed

    def rounding(self, operand: str, summed: int) -> Rounding:
        """The rounding of an operand (INPUT, WEIGHT or GRADIENT) in a product that sums over the operand's axis
        `summed`, 0 or 1: its format, the rule of its scales, and their blocks. `rounds_weight_gradients` is not
        read."""
        scaling, form = SCALINGS[self.scaling], self.form(operand)
        if scaling.block is None:
            return Rounding(form, scaling.scale_of)
        size = scaling.block
        if operand == WEIGHT and scaling.square_weights:
            return Rounding(form, scaling.scale_of, (size, size))
        return Rounding(form, scaling.scale_of, (1, size) if summed == 1 else (size, 1))

    def form(self, operand: str) -> Float8:
        """The format of an operand: INPUT, WEIGHT or GRADIENT."""
        return FORMATS[self.formats][operand == GRADIENT]

    def delayed_scale(self, operand: str) -> DelayedScale:
        """A new delayed scale for an operand: 1, without history."""
        return DelayedScale(self.form(operand).largest * 2.0**-self.margin, self.history, self.algorithm)
