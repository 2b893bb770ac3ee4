"""The tape: record a forward now, ask for its backward later.

MindSpore's PyNative tape is private; this file wraps it, so that the day it moves, or a device needs the public
`GradOperation` instead, the callers stay.

Where a parameter's gradient goes
---------------------------------
The record of a parameter in a gradient buffer (`parameter.meta`, a ParameterMeta) has `main_grad`, its view of the
buffer, and `main_grad_is_empty`, true until something was added since it was last emptied, or (ZeRO stages 2 and 3)
last reduced over the replicas. An operator whose backward calls `add_weight_gradient` adds into `main_grad` itself and
returns None to the tape; any other gradient ends in the tape's own `_grad` and is moved over by `TapeGradients`.
Nothing is zeroed ahead of a backward: the first contribution overwrites.

Inside `deferred_weight_gradients` what such an operator would add is put off: zero-bubble schedules send the input's
gradient on first and compute the weights' later (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore._c_expression import run_backward
from mindspore.common._grad_function import _Function
from mindspore.graph.api import _pynative_executor

from pynative import local
from pynative.memory import in_place


class Function(_Function):
    """An operator with its own backward: `forward(ctx, *inputs)` and `backward(ctx, *output_gradients)`, both static.

    `ctx.inputs_need_gradients` says of each input whether the tape wants its gradient.
    """

    backward: Any

    def __init_subclass__(cls) -> None:
        """Wrap `forward` so that `ctx.needs_input_grad` becomes `ctx.inputs_need_gradients`: MindSpore makes that tuple
        for each call and leaks it unless it is deleted."""
        forward = cls.forward

        def without_leak(ctx: Any, *inputs: Any) -> Any:
            ctx.inputs_need_gradients = ctx.needs_input_grad
            del ctx.needs_input_grad
            return forward(ctx, *inputs)

        cls.forward, cls.backward = staticmethod(without_leak), staticmethod(cls.backward)


class Moved(Function):
    """`apply(*xs, move, transpose)`: the function `move` of the tensors xs forward, `transpose` of the output's
    gradients backward: of a linear function its transpose, of a collective the conjugate one.

    Both functions take one tensor or several and return one or a tuple (`transpose`: with None for a gradient that x
    does not get), and no tensor is kept for the backward besides what the functions refer to.
    """

    def forward(ctx: Any, *inputs: Any) -> Any:
        *xs, move, ctx.transpose = inputs
        return move(*xs)

    def backward(ctx: Any, *gradients: Any) -> Any:
        back = ctx.transpose(*gradients)
        return *(back if isinstance(back, tuple) else (back,)), None, None


class _Identity(Function):
    def forward(ctx: Any, on_backward: Any, number: Any, *tensors: Any) -> Any:
        ctx.on_backward = on_backward
        return tensors[0] if number == 1 else tensors[:number]

    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, *gradients, *(ctx.on_backward(*gradients) or ())


def identity(
    xs: Sequence[Tensor], on_backward: Callable[..., Sequence[Tensor] | None], others: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """Return the tensors as they are. In the backward `on_backward(*gradients)` is called when the gradients of all of
    `xs` have come; it returns the gradients of `others`, tensors on which the result need not depend (None without
    others)."""
    passed = _Identity.apply(on_backward, len(xs), *xs, *others)
    return passed if isinstance(passed, tuple) else (passed,)


@contextmanager
def recording(enabled: bool = True) -> Iterator[None]:
    """Record operators on the tape within the block, or not; the earlier setting comes back after it. Inside of a
    `Function.backward` use `recording_anew` to record."""
    before = _pynative_executor.grad_flag()
    _pynative_executor.set_grad_flag(enabled)
    try:
        yield
    finally:
        _pynative_executor.set_grad_flag(before)


class Switches(NamedTuple):
    """The tape's two settings, which must both be true for operators to be recorded, and the values of every
    `pynative.local.Local` of the process. Of two computations that take turns, each has its own."""

    records: bool
    is_enabled: bool
    values: local.Values


def switches() -> Switches:
    """The current tape settings and `Local` values of this process."""
    return Switches(_pynative_executor.grad_flag(), _pynative_executor.enable_grad(), local.values())


def set_switches(to: Switches) -> None:
    """Set the tape settings and `Local` values of this process to `to`."""
    _pynative_executor.set_grad_flag(to.records)
    _pynative_executor.set_enable_grad(to.is_enabled)
    local.put_back(to.values)


def no_grad() -> AbstractContextManager[None]:
    """Record no operator on the tape within the block."""
    return recording(False)


def is_recording() -> bool:
    """Whether operators are written to the tape."""
    return _pynative_executor.grad_flag() and _pynative_executor.enable_grad()


@contextmanager
def recording_anew() -> Iterator[None]:
    """Record operators on the tape within the block, also inside of a `Function.backward`; the earlier settings come
    back after it."""
    before = _pynative_executor.enable_grad()
    _pynative_executor.set_enable_grad(True)
    try:
        with recording():
            yield
    finally:
        _pynative_executor.set_enable_grad(before)


def detached(tensor: Tensor) -> Tensor:
    """A tensor of the same values that is not part of the graph."""
    return ops.stop_gradient(tensor)


def leaf(tensor: Tensor) -> Tensor:
    """The given tensor as a leaf that receives a gradient. No operator on the tape may have made it."""
    tensor.requires_grad_()
    return tensor


def needs_gradient(tensor: Tensor) -> bool:
    """Whether a backward would compute a gradient for this tensor: a leaf that asks for one, or a result
    computed from such a leaf while the tape recorded."""
    return tensor._requires_grad


def backward(outputs: Sequence[Tensor], gradients: Sequence[Tensor], keep_graph: bool = False) -> None:
    """Run the backward of the graphs that end in `outputs`, from `gradients` of the same shapes and types.

    Gradients of leaves are added to their `_grad`; but an operator that calls `add_weight_gradient` adds a buffered
    parameter's gradient to `main_grad`, or defers that. keep_graph: the graph may be run backward again.
    """
    run_backward(tuple(outputs), tuple(gradients), keep_graph, False, ())


class _End(_Function):
    @staticmethod
    def forward(ctx: Any, result: Any, gradients: Any) -> Any:
        ctx.gradients = gradients
        return Tensor.from_numpy(np.zeros(1, np.float32))

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return ctx.gradients.pop(), None


class HandedOver:
    """The graph of a result that goes elsewhere, such as to another pipeline stage, kept until `backward`; the result's
    own memory is not kept for it."""

    def __init__(self, result: Tensor) -> None:
        self._gradients: list[Tensor] = []
        self._end = _End.apply(result, self._gradients)

    def backward(self, gradient: Tensor) -> None:
        """Run the result's backward from `gradient`, of the result's shape and type."""
        self._gradients.append(gradient)
        backward([self._end], [Tensor.from_numpy(np.ones(1, np.float32))])


def take_gradient(tensor: Tensor) -> Tensor | None:
    """The gradient that the tape left in a leaf's `_grad`, which is cleared; None if there is none."""
    gradient, tensor._grad = tensor._grad, None
    return gradient


Contribution = Callable[[Tensor | None, bool], Tensor]
"""Function (out, accumulate) that computes a parameter's gradient. `out` None: it returns a new tensor. Otherwise it
writes the gradient into `out`, of the parameter's shape, or with `accumulate` adds it, and returns `out`."""

Contributions = Callable[[Sequence[Tensor | None], Sequence[bool]], Sequence[Tensor]]
"""A `Contribution` of several parameters at once: a list of each argument, and a gradient for each parameter."""


class DeferredGradients:
    """A queue of weight gradients that backward passes left to be computed later, with the tensors that they are made
    from, and of actions that must follow them."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()

    def add(self, action: Callable[[], None]) -> None:
        """Append a deferred weight gradient, or another action that must follow those in the queue."""
        self._queue.append(action)

    def run(self) -> None:
        """Run all actions in the order in which they were added; the queue lets go of each one, and of its tensors,
        right after it."""
        while self._queue:
            self._queue.popleft()()


_deferred: local.Local[DeferredGradients | None] = local.Local(None)


@contextmanager
def deferred_weight_gradients(queue: DeferredGradients | None = None) -> Iterator[DeferredGradients]:
    """Put off, within the block, what `add_weight_gradient` would add to buffered parameters; yields the queue
    (`queue`, or a new one), whose `run` computes it. Gradients that the tape leaves in `_grad` are not put off."""
    own = DeferredGradients() if queue is None else queue
    with _deferred.holding(own):
        yield own


def _accumulate(parameters: Sequence[Tensor], compute: Contributions) -> None:
    metas = [parameter.meta for parameter in parameters]
    for meta in metas:
        _check_open(meta)
    compute([meta.main_grad for meta in metas], [not meta.main_grad_is_empty for meta in metas])
    for meta in metas:
        meta.main_grad_is_empty = False
        meta.after_contribution()


def _check_open(meta: Any) -> None:
    """Raise ValueError if the sum of the parameter's gradient over replicas has begun already."""
    if meta.main_grad_is_final:
        raise ValueError(
            f"parameter {meta.spec.name}: has a gradient from outside of its layer, after the layer's backward, when "
            f"its sum over the data-parallel ranks had begun; leave out --overlap-grad-reduce"
        )


def add_weight_gradient(parameter: Tensor, compute: Contribution) -> Tensor | None:
    """Add a parameter's gradient to `main_grad`, now or in the deferred queue. Returns what a `Function.backward` gives
    the tape: None, or the gradient itself in the parameter's type if the parameter is in no buffer. Nothing is computed
    for a frozen one (None). Where it is added, ValueError if the sum of `main_grad` over replicas has begun."""
    return add_weight_gradients((parameter,), lambda out, accumulate: [compute(out[0], accumulate[0])])[0]


def add_weight_gradients(parameters: Sequence[Tensor], compute: Contributions) -> list[Tensor | None]:
    """`add_weight_gradient` of several parameters whose gradients one operator computes: if all of them are in buffers
    they are added there, else all are returned. If all are frozen, nothing is computed and Nones are returned; if only
    some are, the gradients of all are computed."""
    if all(isinstance(parameter, Parameter) and not parameter.requires_grad for parameter in parameters):
        return [None] * len(parameters)
    metas = [getattr(parameter, "meta", None) for parameter in parameters]
    if any(meta is None or meta.main_grad is None for meta in metas):
        gradients = compute([None] * len(parameters), [False] * len(parameters))
        return [g if g.dtype == p.dtype else ops.cast(g, p.dtype) for g, p in zip(gradients, parameters, strict=True)]
    queue = deferred()
    if queue is None:
        _accumulate(parameters, compute)
    else:
        queue.add(partial(_accumulate, parameters, compute))
    return [None] * len(parameters)


def deferred() -> DeferredGradients | None:
    """The queue of the `deferred_weight_gradients` block under way; None outside: gradients are added at once."""
    return _deferred.value


class TapeGradients:
    """Gradients of buffered parameters that the tape left in `_grad`; most parameters have none, so a hook on each
    notes those that do.

    Make it once for a set of parameters: the hooks stay on them.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._arrived: dict[int, Tensor] = {}
        for parameter in parameters:
            parameter.register_hook(partial(self._note, parameter))

    def _note(self, parameter: Tensor, gradient: Tensor) -> None:
        self._arrived[id(parameter)] = parameter

    def collect(self) -> None:
        """Add all gradients that the tape left in `_grad` to the parameters' `main_grad`, and clear them. Raises
        ValueError for a parameter if the sum of its `main_grad` over replicas has begun."""
        self.add(self.take(list(self._arrived)))

    def take(self, of: Iterable[int]) -> list[tuple[Tensor, Tensor]]:
        """Take gradients out of `_grad`: (parameter, gradient) for each parameter that has one. of: the `id`s of the
        parameters to look at."""
        arrived = [self._arrived.pop(key) for key in of if key in self._arrived]
        taken = ((parameter, take_gradient(parameter)) for parameter in arrived)
        return [(parameter, gradient) for parameter, gradient in taken if gradient is not None]

    @staticmethod
    def add(taken: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Add gradients that `take` returned to the parameters' `main_grad`. Raises ValueError for a parameter if the
        sum of its `main_grad` over replicas has begun."""
        for parameter, gradient in taken:
            meta = parameter.meta
            _check_open(meta)
            if meta.main_grad_is_empty:
                in_place.assign(meta.main_grad, gradient)
                meta.main_grad_is_empty = False
            else:
                in_place.assign_add(meta.main_grad, gradient)
