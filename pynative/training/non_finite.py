"""Search for the operator that makes a value that is not finite, while a step runs again: an operator's results are
tested, where these are not finite its inputs, and its gradients by identities on the tape."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

from parallel_core.faults import Place
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.parameter import name_parameters
from pynative.startup.whereabouts import layer_of, outwards
from pynative.step_position import get_step_position
from pynative.tape import autograd

_MAY_BE_LOW = ("attention", "softmax", "sinks")
"""Words in the names of operators that may have minus infinity: masked scores, and the maximum of nothing."""


def non_finite_weights(model: nn.Cell) -> tuple[str, ...]:
    """Global names of this rank's parameters with values that are not finite; those that ZeRO stage 3 cuts are not
    tested."""
    return tuple(p.meta.spec.name for p in name_parameters(model) if not p.meta.is_cut and _where([p], "") is not None)


class NonFiniteWatch:
    """The places of the first non-finite values that are found: `origin`, the operator that made the first one, of
    finite inputs (None if nothing was found, or if the first one was given to an operator), and `carried`, without an
    origin the first operator that was given one, beside an origin the next that is found, None if there is none."""

    def __init__(self) -> None:
        self.origin: Place | None = None
        self.carried: Place | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the kernels that run within the block until an origin is found, but for those whose names end in "_",
        `all_finite` and `squared_norm`."""
        with kernels.watched(self._watch):
            yield

    def _watch(self, name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        if name.endswith("_") or name in ("all_finite", "squared_norm"):
            return operator

        def watched(*inputs: Any, **named: Any) -> Any:
            if self.origin is not None:
                return operator(*inputs, **named)
            layer = layer_of(list(outwards(sys._getframe(1)))) or _of_weight(inputs)
            place = partial(self._place, name, layer)
            pair = _Pair(self, place)
            given = [*_tensors(inputs), *_tensors(named.values())]
            result = operator(*(pair.on_input(x) for x in inputs), **named)
            results = _tensors(result if isinstance(result, tuple | list) else [result])
            made = _where(results, name)
            if made is not None:
                is_of_backward = name.endswith("_gradient")
                if is_of_backward:  # memory for a gradient holds arbitrary values before
                    given = [x for x in given if not any(x is y for y in results)]
                before = _where(given, name)
                self._note(place("backward" if is_of_backward else "forward", before or made), before is None)
            return pair.on_result(result)

        return watched

    def _note(self, place: Place, is_origin: bool) -> None:
        if is_origin and self.origin is None and self.carried is None:
            self.origin = place
        elif self.carried is None:
            self.carried = place

    @staticmethod
    def _place(name: str, layer: str, direction: str, rows: tuple[int, ...]) -> Place:
        position = get_step_position()
        return Place(name, direction, layer, position.micro_batch, position.chunk, rows)


class _Pair:
    """The gradients around one call of an operator: of its results, which come, and of its inputs, which it makes of
    them."""

    def __init__(self, watch: NonFiniteWatch, place: Callable[[str, tuple[int, ...]], Place]) -> None:
        self._watch, self._place = watch, place
        self._came_finite = False

    def on_result(self, result: Any) -> Any:
        """The operator's result; tensors of it that need a gradient go through an identity that tests it when it
        comes."""
        if isinstance(result, tuple):
            passed = self._passed(result)
            return type(result)(*passed) if hasattr(result, "_fields") else tuple(passed)
        return self._passed([result])[0]

    def _passed(self, values: Sequence[Any]) -> list[Any]:
        return [self._through(value, self._gradient_came) for value in values]

    def on_input(self, value: Any) -> Any:
        """An input of the operator; a tensor that needs a gradient, and is no parameter, goes through an identity that
        tests the gradient that the operator makes of it."""
        return self._through(value, self._gradient_made)

    @staticmethod
    def _through(value: Any, note: Callable[..., None]) -> Any:
        is_on_tape = isinstance(value, Tensor) and not isinstance(value, Parameter) and autograd.is_recording()
        return autograd.identity([value], note)[0] if is_on_tape and autograd.needs_gradient(value) else value

    def _gradient_came(self, *gradients: Tensor) -> None:
        rows = _where(gradients, "")
        self._came_finite = rows is None
        if rows is not None:
            self._watch._note(self._place("backward", rows), is_origin=False)

    def _gradient_made(self, *gradients: Tensor) -> None:
        rows = _where(gradients, "")
        if rows is not None:
            self._watch._note(self._place("backward", rows), is_origin=self._came_finite)


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(value)
    return found


def _of_weight(inputs: Sequence[Any]) -> str:
    """The global name of the first parameter among an operator's inputs; "" if there is none."""
    metas = (getattr(value, "meta", None) for value in inputs if isinstance(value, Parameter))
    return next((meta.spec.name for meta in metas if meta is not None), "")


def _where(tensors: Sequence[Tensor], operator: str) -> tuple[int, ...] | None:
    """Rows (indices along axis 1) with non-finite values in the first of the tensors [s, b, ...] that has any, () if
    its shape has no rows; None: all values are finite. operator: its name says whether minus infinity is allowed."""
    for tensor in tensors:
        values = tensor.asnumpy()
        if values.dtype.kind != "f" and values.dtype.name != "bfloat16":
            continue
        wrong = _wrong(values.astype(np.float32), any(word in operator for word in _MAY_BE_LOW))
        if wrong.any():
            return tuple(map(int, np.flatnonzero(wrong.any(axis=(0, *range(2, wrong.ndim)))))) if wrong.ndim > 2 else ()
    return None


def _wrong(values: Array, may_be_low: bool) -> Array:
    return np.isnan(values) | np.isposinf(values) if may_be_low else ~np.isfinite(values)
