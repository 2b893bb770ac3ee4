"""Events of the layers of a chunk while it runs: a forward begins or is over, a backward begins, gradients are there.

Reductions that overlap the backward, gathers that overlap the forward, and parameters that are there for one layer at a
time rest on this. An `Observable` cell tells the LayerEvents of its chunk when it runs; while nobody listens they put
nothing on the tape.

The two events of a backward come from identities around the cell, where it has inputs and outputs with a gradient.
Contributions to a gradient of the cell's parameters are computed on the way from the cell's outputs to its inputs, or
by an operator that was recorded after the inputs came in, which the tape runs before what was recorded earlier: so once
the gradients of the inputs are there, all contributions are. One by an operator from before the cell's run comes later.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args
from weakref import WeakMethod

from mindspore import Parameter, Tensor, nn

from pynative.local import Local
from pynative.parameter import name_parameters, trainable
from pynative.tape import autograd

Event = Literal["before_forward", "after_forward", "before_backward", "after_backward"]
Observer = Callable[[nn.Cell], None]
"""A function that is called with the cell that an event is of."""
Uses = Counter[int]
"""The number of runs of each cell in a micro-batch's forward, by the cell's id."""

_uses: Local[Uses | None] = Local(None)
"""The runs of cells in the forward under way; None outside of one, so that a part's second run, in a backward, is not
counted."""


class Observable(nn.Cell):
    """A cell that tells the events of its runs, unless it is inside another observable cell other than the chunk. With
    --zero-stage 3 its trained parameters, unless tied, are gathered for its runs; with stages 2 and 3 their gradients
    are summed over the replicas when its backward is over, and then their memory serves other cells. Derive a layer of
    your own from this class for that."""

    events: "LayerEvents | None" = None
    """The LayerEvents of the cell's chunk; None before somebody listens to them, and inside another observable cell."""

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run `construct`, and tell the forward's events before and after it."""
        if self.events is None:
            return super().__call__(*inputs, **named)
        inputs, named = self.events.enter(self, inputs, named)
        return self.events.leave(self, super().__call__(*inputs, **named))


def _passed(values: list[Any], note: Callable[..., None]) -> list[Any]:
    """The values, with the activations among them that will have a gradient passed through one `autograd.identity`,
    whose `on_backward` is `note`."""
    places = [place for place, value in enumerate(values) if _has_gradient(value)]
    if places:
        passed = autograd.identity([values[place] for place in places], note)
        for place, value in zip(places, passed, strict=True):
            values[place] = value
    return values


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, Parameter) and autograd.needs_gradient(value)


def after_weight_gradients(action: Callable[[], None]) -> None:
    """Call `action` when all weight gradients that operators (`add_weight_gradient`) were to add so far are added: now,
    or behind those in the deferred queue."""
    deferred = autograd.deferred()
    if deferred is None:
        action()
    else:
        deferred.add(action)


class LayerEvents:
    """The events of one chunk of a model.

    before_forward, after_forward: around each run of a cell, runs of an evaluation too, and the second run of a cell
    that is recomputed as a whole. before_backward: for each run on the tape, when the gradients of the cell's outputs
    have come. after_backward: once a micro-batch, when all runs of the cell have added everything to `main_grad` of its
    parameters: deferred weight gradients are computed, and gradients that the tape left are moved over. For a cell with
    a run none of whose inputs has a gradient, after_backward comes at the end of the chunk's backward, or of its
    deferred weight gradients; for one that did not run it does not come. The chunk itself counts as the outermost cell;
    those who run it report its events (`forward`, `backward`), whose before_backward comes before the backward begins.
    """

    def __init__(self, chunk: nn.Cell) -> None:
        self.chunk = chunk
        self.cells = list(_outermost(chunk))
        """The observable cells that lie in no other, in the model's order, without the chunk itself."""
        self.is_last_micro_batch = False
        """Whether the gradients that are computed now are the chunk's last of this step; whoever runs the chunk sets
        it."""
        self._observers: dict[Event, list[Observer]] = {event: [] for event in get_args(Event)}
        self._on_result: Callable[[nn.Cell, Any], None] | None = None
        self._uses_to_come: Uses = Counter()
        self._tape_gradients = autograd.TapeGradients(trainable(chunk))
        self._own_parameters = {id(cell): [id(p) for p in trainable(cell)] for cell in [*self.cells, chunk]}
        for parameter in name_parameters(chunk):
            parameter.meta.layer_events = self

    @classmethod
    def of(cls, chunk: nn.Cell) -> "LayerEvents":
        """The LayerEvents of this chunk: those that its parameters know already, or new ones."""
        known = (parameter.meta.layer_events for parameter in name_parameters(chunk))
        return next((events for events in known if events is not None and events.chunk is chunk), None) or cls(chunk)

    def parameters(self, cell: nn.Cell) -> list[Parameter]:
        """The trainable parameters of an observed cell; for the chunk, those that no observed cell has."""
        if cell is not self.chunk:
            return list(trainable(cell))
        of_cells = {id(parameter) for inner in self.cells for parameter in trainable(inner)}
        return [parameter for parameter in trainable(cell) if id(parameter) not in of_cells]

    def on(self, event: Event, observer: Observer) -> None:
        """Have `observer(cell)` called at each event of this kind, after the observers that were given before; it
        cannot be removed."""
        for cell in self.cells:
            cell.events = self
        self._observers[event].append(observer)

    def on_result(self, observer: Callable[[nn.Cell, Any], None]) -> None:
        """Have `observer(cell, result)` called after each forward of an observed cell, before "after_forward"; it
        replaces an earlier one."""
        for cell in self.cells:
            cell.events = self
        self._on_result = observer

    def listen(self, event: Event, method: Observer) -> None:
        """Have a method called at each event of this kind, as `on` does, without keeping its object alive."""
        weak = WeakMethod(method)

        def observer(cell: nn.Cell) -> None:
            alive = weak()
            if alive is not None:
                alive(cell)

        self.on(event, observer)

    def _tell(self, event: Event, cell: nn.Cell, *_: Tensor) -> None:
        for observer in self._observers[event]:
            observer(cell)

    def enter(self, cell: Observable, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Tell that a cell's forward begins. Returns its inputs, positional and named; if the tape records and somebody
        listens to "after_backward", the tensors among them that have a gradient come through an identity that notes
        when these gradients have come. Parameters do not."""
        self._tell("before_forward", cell)
        if _uses.value is not None:
            _uses.value[id(cell)] += 1
        if not (autograd.is_recording() and self._observers["after_backward"]):
            return inputs, named
        values = _passed([*inputs, *named.values()], partial(self._use_is_over, cell))
        return values[: len(inputs)], dict(zip(named, values[len(inputs) :], strict=True))

    def leave(self, cell: Observable, result: Any) -> Any:
        """Tell that a cell's forward is over. Returns its result; if the tape records and somebody listens to
        "before_backward", a tensor, or the tensors of a tuple, that have a gradient come through an identity that tells
        when these gradients have come. Parameters do not."""
        if self._on_result is not None:
            self._on_result(cell, result)
        if autograd.is_recording() and self._observers["before_backward"]:
            is_one = not isinstance(result, tuple)
            values = _passed([result] if is_one else [*result], partial(self._tell, "before_backward", cell))
            result = values[0] if is_one else tuple(values)
        self._tell("after_forward", cell)
        return result

    @contextmanager
    def forward(self) -> Iterator[Uses]:
        """Context around the chunk's forward of a micro-batch; yields the runs of its cells, to be given to
        `backward`."""
        self._tell("before_forward", self.chunk)
        uses: Uses = Counter()
        with _uses.holding(uses):
            yield uses
        self._tell("after_forward", self.chunk)

    @contextmanager
    def backward(self, uses: Uses) -> Iterator[None]:
        """Context around the chunk's backward of a micro-batch, inside of `deferred_weight_gradients` if that is used.
        At its end the tape's own gradients of the chunk's parameters are moved to `main_grad`; those of observed cells
        may be moved only when the deferred gradients are computed. uses: those that `forward` yielded for this
        micro-batch; they are used up."""
        self._uses_to_come = uses
        self._tell("before_backward", self.chunk)
        yield
        for cell in reversed(self.cells):
            if uses[id(cell)]:
                self._complete(cell)
        self.collect()
        self._complete(self.chunk)

    def collect(self) -> None:
        """Add the gradients that the tape left to `main_grad`, at once. `backward` does it; a script that runs a
        backward itself calls this. Raises ValueError for a parameter if the sum of its `main_grad` over replicas has
        begun."""
        self._tape_gradients.collect()

    def _use_is_over(self, cell: nn.Cell, *_: Tensor) -> None:
        self._uses_to_come[id(cell)] -= 1
        if not self._uses_to_come[id(cell)]:
            self._complete(cell)

    def _complete(self, cell: nn.Cell) -> None:
        """Take the tape's gradients of the cell now, and add them (then tell "after_backward") behind the deferred
        ones: cells may share the memory of their gradients (ZeRO). Cells that did not run are completed with the chunk.
        """
        if self._observers["after_backward"]:
            taken = self._tape_gradients.take(self._own_parameters[id(cell)])
            after_weight_gradients(partial(self._is_complete, cell, taken))

    def _is_complete(self, cell: nn.Cell, taken: list[tuple[Tensor, Tensor]]) -> None:
        self._tape_gradients.add(taken)
        self._tell("after_backward", cell)


def _outermost(cell: nn.Cell) -> Iterator[Observable]:
    """Yield the observable cells inside a cell that are inside no other observable one, each once."""
    seen: set[int] = set()
    for child in cell.cells():
        for found in [child] if isinstance(child, Observable) else _outermost(child):
            if id(found) not in seen:
                seen.add(id(found))
                yield found
