"""Activation checkpointing: a part of the forward pass keeps its inputs in place of its activations, and is run again
for its backward.

"Training Deep Nets with Sublinear Memory Cost" (Chen et al., 2016). Dropout masks come again because they are functions
of place, and the named random streams are set back (not by `drop_output`). A part inside another is run as part of the
outer one. Gradients of parameters go where they go without recomputation, and are added once: the first run records
nothing.

A cell calls `run_part` where a part of it may run again; it is told when it is built which parts do.

A part's results may be dropped, too (Megatron's CheckpointWithoutOutput): the operator that takes them, such as a
linear, asks for them again in its backward, and the part's backward uses the same second run. With `drop_output`
nothing but the result is dropped: the first run is recorded, and the second is not.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.recompute.parts import Again
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels, parallel_state
from pynative.local import Local
from pynative.tape import autograd
from pynative.tensor_parallel.made_again import Kept, made_again
from pynative.tensor_parallel.offload import device_has_own_memory, offloading
from pynative.tensor_parallel.random import get_rng_tracer

Part = Callable[..., Any]
"""A function of inputs that returns a tensor, or a tuple of them; parameters and None are handed through on both
sides."""


class _Run:
    """The first run of a part, and what is kept of it until the second, which its backward makes."""

    def __init__(self, part: Part) -> None:
        self._part, self._states = part, get_rng_tracer().get_states()
        self._collectives: deque[Tensor] = deque()
        self._kept: list[Kept] = []
        self._outputs: list[Tensor] = []
        self._gradients: dict[int, Tensor] = {}
        self._is_second = False

    @staticmethod
    def of(part: Part, inputs: Sequence[Any], keep: Callable[[Any], Kept]) -> "tuple[_Run, Any]":
        """(The run, its result): run the part for the first time, without the tape. keep: turns an input into the
        function that returns it for the second run."""
        run = _Run(part)
        with _running.holding(run), autograd.no_grad():
            result = part(*inputs)
            run._kept, run._outputs = [keep(entry) for entry in inputs], _tensors(result)
        return run, result

    def take_first(self) -> list[Tensor]:
        """The tensors that the first run gave, which the run then forgets."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def collective(self, run: Callable[[], Tensor]) -> Tensor:
        """The result of the collective `run`; in the second run that of the first, without a message."""
        if self._is_second:
            return self._collectives.popleft()
        self._collectives.append(run())
        return self._collectives[-1]

    def output(self, number: int = 0) -> Tensor:
        """The part's result of this number, counted from 0 over tensors that are no parameters; computed by the second
        run, which is made if it was not yet."""
        if not self._is_second:
            self._run_again()
        return self._outputs[number]

    def _run_again(self) -> None:
        self._is_second = True
        tracer = get_rng_tracer()
        here = tracer.get_states()
        tracer.set_states(self._states)
        with _running.holding(self), autograd.recording_anew():
            inputs = [self._start(position, kept()) for position, kept in enumerate(self._kept)]
            self._outputs = _tensors(self._part(*inputs))
        tracer.set_states(here)

    def _start(self, position: int, entry: Any) -> Any:
        """An input of the second run from `entry`, its value: a tensor is detached, and the gradient that comes to it
        is noted under its position if it can have one."""
        if not _has_gradient(entry):
            return entry
        note = partial(self._gradients.__setitem__, position)
        return autograd.Moved.apply(_anchor(), lambda _: autograd.detached(entry), note)

    def backward(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of the part's results -> gradients of its inputs (None for those that have none); parameters get
        theirs as in any backward."""
        if not self._is_second:
            self._run_again()
        autograd.backward(self._outputs, gradients)
        return [self._gradients.get(position) for position in range(len(self._kept))]


_running: Local[_Run | None] = Local(None)


def kept_collective(run: Callable[[], Tensor]) -> Tensor:
    """The result of the collective `run`. Inside a function that `checkpoint` or `checkpoint_without_output(s)` will
    run again, the result is kept, and the second run takes it without sending; not so with `drop_output`."""
    return run() if _running.value is None else _running.value.collective(run)


def _is_activation(entry: Any) -> bool:
    return isinstance(entry, Tensor) and not isinstance(entry, Parameter)


def _has_gradient(entry: Any) -> bool:
    return _is_activation(entry) and entry.is_floating_point()


def _tensors(result: Any) -> list[Tensor]:
    return [entry for entry in (result if isinstance(result, tuple) else (result,)) if _is_activation(entry)]


def _anchor() -> Tensor:
    """A leaf that needs a gradient, as an input: the tape records a function only if one does."""
    return autograd.leaf(Tensor.from_numpy(np.zeros(1, np.float32)))


def _keep(entry: Any) -> Kept:
    return made_again(entry) or (lambda: entry)


def _keep_slice(entry: Any) -> Kept:
    """Keep this rank's slice of the last axis of an input that is the same on all tensor-parallel ranks; the second run
    gathers it. The input stays whole if that axis cannot be cut evenly, or it is no floating-point activation."""
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size == 1 or not _has_gradient(entry) or entry.shape[-1] % group.size:
        return _keep(entry)
    own = kernels.chunk(entry, -1, group.rank, group.size)
    return lambda: group.all_gather(own, axis=-1)


class _Checkpoint(autograd.Function):
    """The tape's operator of a part whose first run was made; its backward makes the second."""

    def forward(ctx: Any, anchor: Any, run: Any, *inputs: Any) -> Any:
        ctx.run = run
        first, *others = run.take_first()
        return (first, *others) if others else first

    def backward(ctx: Any, *gradients: Any) -> Any:
        run, ctx.run = ctx.run, None
        return (None, None, *run.backward(gradients))


def _recorded(run: _Run, result: Any, inputs: Sequence[Any]) -> Any:
    """The result of a first run, in which each activation is replaced by the same tensor as an output of the tape's
    operator of the part."""
    recorded = _Checkpoint.apply(_anchor(), run, *inputs)
    if not isinstance(result, tuple):
        return recorded
    tensors = iter(recorded if isinstance(recorded, tuple) else (recorded,))
    return tuple(next(tensors) if _is_activation(entry) else entry for entry in result)


def _is_needed() -> bool:
    """Whether a part must be able to run again: the tape records, and it is not inside of another such part."""
    return _running.value is None and autograd.is_recording()


def checkpoint(function: Part, distribute_saved_activations: bool, *args: Any) -> Any:
    """`function(*args)`; the arguments are kept in place of the tensors that its operators would save, and `function`
    is run again for its backward (Megatron's function). An argument with `made_again` is recomputed instead of kept,
    unless its slice is kept. Where nothing is recorded, and inside a function that `checkpoint` or
    `checkpoint_without_output(s)` runs, this is a usual call.

    distribute_saved_activations: keep this rank's slice, along the last axis, of each argument, which must be the same
    on all tensor-parallel ranks; the second run gathers them. Arguments that cannot be cut evenly, or are no
    floating-point activations, are treated as without this flag, and so is every argument on a single rank.
    """
    if not _is_needed():
        return function(*args)
    run, result = _Run.of(function, args, _keep_slice if distribute_saved_activations else _keep)
    return _recorded(run, result, args)


def checkpoint_without_output(function: Part, *args: Any) -> Tensor:
    """`checkpoint` of a function whose one result goes only into linears: they do not keep it either, but take it from
    the function's second run."""
    if not _is_needed():
        return function(*args)
    run, result = _Run.of(function, args, _keep)
    output = _recorded(run, result, args)
    output.made_again = run.output
    return output


def checkpoint_without_outputs(function: Part, *args: Any) -> tuple[Tensor, ...]:
    """`checkpoint` of a function whose several results, all of them tensors and none a parameter, go into operators
    within `made_again.left_out`: they do not keep them either, but take them from the function's second run."""
    if not _is_needed():
        return function(*args)
    run, result = _Run.of(function, args, _keep)
    outputs = _recorded(run, result, args)
    for number, output in enumerate(outputs):
        output.made_again = partial(run.output, number)
    return outputs


def drop_output(function: Part, *args: Any) -> Tensor:
    """`function(*args)`, recorded as usual, whose one result goes only into linears: they do not keep it, but call
    `function`, which must draw no random numbers, again for it. Inside a function that `checkpoint` or
    `checkpoint_without_output(s)` runs, this is a usual call."""
    output = function(*args)

    def again() -> Tensor:
        with autograd.no_grad():
            return function(*args)

    if _is_needed():
        output.made_again = again
    return output


NOTHING = CellRecompute()
"""The setting of a cell all of whose parts run once."""


class HasParts(Protocol):
    """A cell of which parts may run again: those that its `recomputed` names."""

    recomputed: CellRecompute

    def get_parameters(self) -> Any: ...


_WAYS: dict[Again, Callable[..., Any]] = {
    Again.WHOLE: lambda function, *args: checkpoint(function, False, *args),
    Again.WITHOUT_OUTPUT: checkpoint_without_output,
    Again.OUTPUTS: checkpoint_without_outputs,
    Again.OUTPUT: drop_output,
}


def run_part(cell: HasParts, path: str, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, run as `cell.recomputed` says for the part at `path` ("": the whole cell): again in the
    backward or not, and, unless the device is a CPU, within `offloading` or not."""
    asked = cell.recomputed
    way = asked.ways.get(path)
    run = function if way is None else partial(_WAYS[way], function)
    if path not in asked.offloaded or not device_has_own_memory():
        return run(*args)
    with offloading(cell.get_parameters(), asked.smallest_offloaded):
        return run(*args)


def keep_collectives(cell: Any) -> None:
    """Have those linears among a cell's attributes that `cell.recomputed.kept_collectives` names keep the results of
    their collectives for a second run (`Boundary.keeping`). Names with a dot, of linears further inside, are passed
    over."""
    for name in (path for path in cell.recomputed.kept_collectives if "." not in path):
        linear = getattr(cell, name)
        linear.boundary = linear.boundary.keeping()
