"""The tape: record a forward now, ask for its backward later.

MindSpore's PyNative tape is private. This is the one file that names it, so that the day it moves, or a device
needs the public `GradOperation` instead, one file changes.

Where a parameter's gradient goes
---------------------------------
The record of a parameter in a gradient buffer (`parameter.meta`, a ParameterMeta) has `main_grad`, its view of the
buffer, and `main_grad_is_empty`, true until something was added since the buffer was last emptied. An operator with a
hand-written backward adds into `main_grad` itself (`add_weight_gradient`) and returns None to the tape; anything else
ends in the tape's own `_grad` and is moved over by `TapeGradients`. Nothing is zeroed: the first contribution
overwrites.

Inside `deferred_weight_gradients` what an operator would add is put off: zero-bubble schedules send the input's
gradient on first and compute the weights' when there is nothing else to do (Qi et al., "Zero Bubble Pipeline
Parallelism", 2023).
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
        """MindSpore makes a tuple `ctx.needs_input_grad` for each call and never lets it go, unless it is deleted."""
        forward = cls.forward

        def without_leak(ctx: Any, *inputs: Any) -> Any:
            ctx.inputs_need_gradients = ctx.needs_input_grad
            del ctx.needs_input_grad
            return forward(ctx, *inputs)

        cls.forward, cls.backward = staticmethod(without_leak), staticmethod(cls.backward)


class Moved(Function):
    """`apply(*xs, move, transpose)`: a linear move forward, its transpose (of messages: the conjugate) backward.

    Both take and give one tensor or several, and keep nothing that they don't refer to.
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
    """The tensors as they are. `on_backward(*gradients)` is called when the gradients of all of them have come; it
    gives those of `others`, which have a part in the graph only by that."""
    passed = _Identity.apply(on_backward, len(xs), *xs, *others)
    return passed if isinstance(passed, tuple) else (passed,)


@contextmanager
def recording(enabled: bool = True) -> Iterator[None]:
    """Within the block, operators are (or are not) written to the tape; the earlier setting comes back after it."""
    before = _pynative_executor.grad_flag()
    _pynative_executor.set_grad_flag(enabled)
    try:
        yield
    finally:
        _pynative_executor.set_grad_flag(before)


class Switches(NamedTuple):
    """Settings of the process that hold within a block: of two computations that take turns, each has its own."""

    records: bool
    is_enabled: bool
    values: local.Values


def switches() -> Switches:
    """The current values of the switches."""
    return Switches(_pynative_executor.grad_flag(), _pynative_executor.enable_grad(), local.values())


def set_switches(to: Switches) -> None:
    """Restore the switches to earlier values."""
    _pynative_executor.set_grad_flag(to.records)
    _pynative_executor.set_enable_grad(to.is_enabled)
    local.put_back(to.values)


def no_grad() -> AbstractContextManager[None]:
    """Within the block nothing is recorded."""
    return recording(False)


def is_recording() -> bool:
    """Whether operators are written to the tape."""
    return _pynative_executor.grad_flag() and _pynative_executor.enable_grad()


@contextmanager
def recording_anew() -> Iterator[None]:
    """Within the block, in a `Function.backward`, operators are written to a tape of their own."""
    before = _pynative_executor.enable_grad()
    _pynative_executor.set_enable_grad(True)
    try:
        with recording():
            yield
    finally:
        _pynative_executor.set_enable_grad(before)


def detached(tensor: Tensor) -> Tensor:
    """The same values, in the same memory, made by no operator of the tape."""
    return ops.stop_gradient(tensor)


def leaf(tensor: Tensor) -> Tensor:
    """The same tensor, which no operator on the tape may have made, starting a graph and receiving a gradient."""
    tensor.requires_grad_()
    return tensor


def needs_gradient(tensor: Tensor) -> bool:
    """Whether a backward gives this tensor a gradient: a leaf that asks for one, or what the tape made of such."""
    return tensor._requires_grad


def backward(outputs: Sequence[Tensor], gradients: Sequence[Tensor], keep_graph: bool = False) -> None:
    """Run the graphs that ended in `outputs` backwards from `gradients` (same shapes and types).

    Gradients of leaves are added to their `_grad`; those of buffered parameters into `main_grad`.
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
    """The graph of a result that goes elsewhere, such as to another pipeline stage: its backward comes with a gradient
    of the result's shape and type, and does not keep the result itself until then."""

    def __init__(self, result: Tensor) -> None:
        self._gradients: list[Tensor] = []
        self._end = _End.apply(result, self._gradients)

    def backward(self, gradient: Tensor) -> None:
        """`autograd.backward` of the result."""
        self._gradients.append(gradient)
        backward([self._end], [Tensor.from_numpy(np.ones(1, np.float32))])


def take_gradient(tensor: Tensor) -> Tensor | None:
    """The gradient that backward left in a leaf, which then forgets it."""
    gradient, tensor._grad = tensor._grad, None
    return gradient


Contribution = Callable[[Tensor | None, bool], Tensor]
"""(out, accumulate) -> a gradient. With a Tensor `out` of the parameter's shape, `out` is what is returned and holds it
after: in place of what it held or, with `accumulate`, added to that."""

Contributions = Callable[[Sequence[Tensor | None], Sequence[bool]], Sequence[Tensor]]
"""The same of several parameters at once."""


class DeferredGradients:
    """Weight gradients that a backward pass left for later, with the inputs they are made from."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()

    def add(self, action: Callable[[], None]) -> None:
        """Put one off, or what is to follow those that were."""
        self._queue.append(action)

    def run(self) -> None:
        """Add all to their parameters in the order of the backward pass; each one's inputs are let go right after."""
        while self._queue:
            self._queue.popleft()()


_deferred: local.Local[DeferredGradients | None] = local.Local(None)


@contextmanager
def deferred_weight_gradients(queue: DeferredGradients | None = None) -> Iterator[DeferredGradients]:
    """Within the block, what operators add to buffered parameters is put off until `run` of what the block is given:
    `queue`, or a new one."""
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
    """Raise ValueError if a parameter's gradient is summed over replicas already."""
    if meta.main_grad_is_final:
        raise ValueError(
            f"parameter {meta.spec.name}: has a gradient from outside of its layer, after the layer's backward, when "
            f"its sum over the data-parallel ranks had begun; leave out --overlap-grad-reduce"
        )


def add_weight_gradient(parameter: Tensor, compute: Contribution) -> Tensor | None:
    """Add a parameter's gradient where it belongs; the return value is what a `Function.backward` gives the tape."""
    return add_weight_gradients((parameter,), lambda out, accumulate: [compute(out[0], accumulate[0])])[0]


def add_weight_gradients(parameters: Sequence[Tensor], compute: Contributions) -> list[Tensor | None]:
    """The same of several parameters, which one operator computes: all of them are in buffers, or none. Of frozen ones
    nothing is computed."""
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
    """The weight gradients that are put off; None where they are added at once."""
    return _deferred.value


class TapeGradients:
    """Gradients of buffered parameters that the tape left in `_grad`; most parameters have none, so hooks tell which.

    Make it once for a set of parameters: a hook cannot be taken back without leaking.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._arrived: dict[int, Tensor] = {}
        for parameter in parameters:
            parameter.register_hook(partial(self._note, parameter))

    def _note(self, parameter: Tensor, gradient: Tensor) -> None:
        self._arrived[id(parameter)] = parameter

    def collect(self) -> None:
        """Move what arrived in a backward into the parameters' `main_grad`."""
        self.add(self.take(list(self._arrived)))

    def take(self, of: Iterable[int]) -> list[tuple[Tensor, Tensor]]:
        """The parameters, of those with these ids, for which something arrived, with that."""
        arrived = [self._arrived.pop(key) for key in of if key in self._arrived]
        taken = ((parameter, take_gradient(parameter)) for parameter in arrived)
        return [(parameter, gradient) for parameter, gradient in taken if gradient is not None]

    @staticmethod
    def add(taken: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Add what was taken to the parameters' `main_grad`."""
        for parameter, gradient in taken:
            meta = parameter.meta
            _check_open(meta)
            if meta.main_grad_is_empty:
                in_place.assign(meta.main_grad, gradient)
                meta.main_grad_is_empty = False
            else:
                in_place.assign_add(meta.main_grad, gradient)
