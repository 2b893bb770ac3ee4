"""Figures that cells report while a training step runs, and auxiliary losses, which enter the graph without being
returned.

`with_loss` attaches an auxiliary loss to an activation by an identity whose backward starts the loss's own from its
seed (Megatron's MoEAuxLossAutoScaler). So the loss needs no path to the last stage, where the main loss is; its seed
follows from the rule that gives the main loss's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from parallel_core.numerics.averaging import Averaging, MicroBatchWeight, Weight
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import Figure, from_vector, to_vector
from pynative.tape import autograd


class _Added(NamedTuple):
    value: Tensor | float | Callable[[], float]
    layer: int | None
    share: float
    first: int

    def read(self, figure: Figure) -> Array:
        if isinstance(self.value, Tensor):
            value = np.squeeze(self.value.asnumpy())
        else:
            value = np.asarray(self.value if isinstance(self.value, float) else self.value())
        return figure.counted(value) * self.share


class StepFigures:
    """This rank's figures of one training step.

    Args:
        figures: the figures to keep; others that cells report are dropped.
        averaging: gives the gradient from which the backward of an auxiliary loss starts (its seed), and the number of
            micro-batches of all replicas, by which `whole` divides losses.
    """

    def __init__(self, figures: Sequence[Figure], averaging: Averaging) -> None:
        self.figures, self.averaging = figures, averaging
        self._added: dict[str, list[_Added]] = {figure.name: [] for figure in figures}
        self._running: dict[tuple[str, int], tuple[Array, int]] = {}

    def add(
        self,
        name: str,
        value: Tensor | float | Callable[[], float],
        layer: int | None = None,
        share: float = 1.0,
        first: int = 0,
    ) -> None:
        """Report a figure's value on this rank, counted with the factor `share`; dropped if the figure is not kept.

        value: for a figure by layer that of one layer; a function is called each time `vector` or `largest` reads it.
        layer: the layer's number from 1, for a figure by layer. first: for a figure of largest values, the index along
        the figure's last axis of this rank's first value.
        """
        if name in self._added:
            kept = autograd.detached(value) if isinstance(value, Tensor) else value
            self._added[name].append(_Added(kept, layer, share, first))

    def running_mean(self, name: str, layer: int, value: Array) -> Array:
        """The mean of the values that were given here for this name and layer so far in this step on this rank, this
        value included."""
        total, count = self._running.get((name, layer), (np.zeros_like(value), 0))
        self._running[name, layer] = total + value, count + 1
        return (total + value) / (count + 1)

    def vector(self) -> list[float]:
        """This rank's figures other than those of largest values, flattened in their order, to be summed over all
        ranks. Reported tensors are read from the device here and in `largest`, not when they are added."""
        figures = [figure for figure in self.figures if not figure.is_largest]
        values = {figure.name: np.zeros(figure.shape, np.float64) for figure in figures}
        for figure in figures:
            for one in self._added[figure.name]:
                values[figure.name][... if one.layer is None else one.layer - 1] += one.read(figure)
        return to_vector(figures, values)

    def largest(self) -> dict[str, Array]:
        """This rank's figures of largest values, float32, by name; -inf where nothing was reported."""
        found = {}
        for figure in self.figures:
            if figure.is_largest:
                values = found[figure.name] = np.full(figure.shape, -np.inf, np.float32)
                for one in self._added[figure.name]:
                    given = np.atleast_1d(one.read(figure))
                    row = values[... if one.layer is None else one.layer - 1]
                    place = slice(one.first, one.first + len(given))  # Beyond the figure's end is padding.
                    row[place] = np.maximum(row[place], given[: len(row[place])])
        return found

    def whole(self, vector: Sequence[float], largest: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """The job's figures by name: from `vector`, the sum of all ranks' vectors, with losses divided here by the
        number of micro-batches of all replicas; and `largest`, the largest values of all ranks, as they are given
        (None: none)."""
        summed = [figure for figure in self.figures if not figure.is_largest]
        parts = self.averaging.micro_batches * self.averaging.replicas
        return {**from_vector(summed, vector, parts), **(largest or {})}


_current: StepFigures | None = None


@contextmanager
def collected(figures: StepFigures | None) -> Iterator[None]:
    """Have cells report to `figures` within the block; None: the forward is not of a training step, and nothing is
    kept."""
    global _current
    before, _current = _current, figures
    try:
        yield
    finally:
        _current = before


def current() -> StepFigures | None:
    """The StepFigures that cells report to; None outside of a training step, and where the tape does not record, as in
    the first run of a layer that is recomputed as a whole."""
    return _current if autograd.is_recording() else None


def seed(weight: Weight) -> float:
    """The gradient from which the backward of an auxiliary loss over the tokens of `weight` starts; 1 outside of a
    training step."""
    return 1.0 if _current is None else _current.averaging.seed(weight)


def with_loss(activation: Tensor, loss: Tensor, weight: Weight) -> Tensor:
    """Return the activation, with the float32 auxiliary loss attached: when the activation's gradient has come, the
    backward of the loss starts, too, from `seed(weight)`.

    weight: over how many tokens the loss is taken, and whether it is their mean.
    """
    return _with_loss(activation, loss, seed(weight))


def _with_loss(activation: Tensor, loss: Tensor, start: float) -> Tensor:
    (attached,) = autograd.identity(
        [activation], lambda _: [Tensor.from_numpy(np.full(loss.shape, start, np.float32))], [loss]
    )
    return attached


class MoEAuxLossAutoScaler:
    """Megatron's name of `with_loss`, for users' cells; the backward of a loss that is attached after a call of
    `set_loss_scale` starts from the value given there, not from `seed`.

    With --calculate-per-token-loss the caller has to multiply the loss by the micro-batch's tokens, as in Megatron.
    """

    main_loss_backward_scale: float | None = None

    @classmethod
    def apply(cls, output: Tensor, aux_loss: Tensor) -> Tensor:
        """Return `output`, whose backward also starts the one of `aux_loss`, which is float32."""
        if cls.main_loss_backward_scale is not None:
            return _with_loss(output, aux_loss, cls.main_loss_backward_scale)
        return with_loss(output, aux_loss, MicroBatchWeight(1.0))

    @classmethod
    def set_loss_scale(cls, scale: Tensor | float) -> None:
        """Set the gradient from which the backward of every loss attached by `apply` from now on starts."""
        cls.main_loss_backward_scale = float(scale.asnumpy()) if isinstance(scale, Tensor) else scale
