"""A stage's chunks of the model under a schedule: in training a forward keeps its graph until its backward."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from mindspore import Tensor, nn

from parallel_core.batch.rules import BatchRules
from parallel_core.numerics.averaging import Averaging, Weight
from parallel_core.numerics.dtypes import Array
from parallel_core.schedules import Backward, Forward, WeightGrad
from parallel_core.schedules.actions import Compute, Ordered, Pair, of_entry
from pynative.parameter import as_type
from pynative.tape import autograd
from pynative.tape.layer_events import LayerEvents, Uses
from pynative.tape.turns import Computation, Turns


@dataclass(frozen=True)
class MicroBatchLoss:
    """The loss of a micro-batch, a scalar still on the device until `read` at the end of the step, and its weight in
    the batch's mean. report: returns (sum, count) where something else than the loss is to be reported, else None."""

    loss: Tensor
    """A scalar, from which the backward pass starts."""
    weight: Weight
    report: Callable[[], tuple[float, float] | None] = lambda: None
    """Returns (sum, count) where something else than the loss is to be reported, else None."""

    def read(self) -> tuple[float, float, float]:
        """(The sum to report, its divisor, the number of tokens that count in the loss: `weight.tokens`, 1 where a
        script gives a mean without it). The sum is the loss's over these tokens, and the divisor their number, unless
        `report` returns others."""
        tokens = self.weight.tokens
        total, count = self.report() or (Averaging.loss_sum(float(self.loss.asnumpy()), self.weight), tokens)
        return total, count, tokens


LossOf = Callable[[Tensor], MicroBatchLoss]
"""A function from the last chunk's output to the micro-batch's loss."""


class ForwardStep(Protocol):
    """Interface of a chunk's forward on one micro-batch of a step's data. draws: the number of items of a data iterator
    that make up a step of the configuration's batch size; is_of_a_script: whether a function of the script draws
    them."""

    draws: int
    """The number of items of a data iterator that make up a step of the configuration's batch size."""
    is_of_a_script: bool
    """Whether a function of the script draws the items."""

    def begin(
        self, data_iterator: Iterator[Any] | None, model: nn.CellList, micro_batches: int, rules: BatchRules
    ) -> None:
        """Start a step of `micro_batches` micro-batches of this rank; `model` is the stage's chunks, `rules` the rules
        that the data must keep."""

    def again(self) -> None:
        """Start the last step once more, with the data that were drawn for it."""

    def drawn_tokens(self) -> Sequence[Array]:
        """The tokens [b, s] of the micro-batches that this rank has drawn in the step, where they are known; empty on a
        rank that reads none."""

    def described(self, micro_batch: int, row: int) -> str:
        """The sample and documents that a row of a micro-batch is made of, as text, by the data that this rank drew
        last; "" where that is not known."""

    def __call__(self, model: nn.Cell, micro_batch: int, chunk: int) -> tuple[Tensor, LossOf]:
        """(The output of a chunk's model on a micro-batch, the function that makes the loss of it)."""


@dataclass
class _Pending:
    """A forward whose backward is still to come: its input (None if there was none), its graph, and the runs of its
    cells."""

    input: Tensor | None
    uses: Uses
    end: autograd.HandedOver
    seed: Tensor | None
    """The gradient of the loss from which the backward starts; None: it starts from the next chunk's gradient."""


class Stage:
    """Forward, backward and weight gradients of one stage's chunks in a training or evaluation step.

    Args:
        model: the stage's chunks.
        averaging: gives the gradients from which backwards of losses start.
        is_last: whether the last chunk computes the loss.
        enter: called before each computation with the number of its micro-batch on this rank and its chunk.
        delays_weight_gradients: in a pair that takes turns, the backward puts weight gradients off until it gives way
            (its tokens travel to or from experts) or ends.
        takes_turns: run the forward and the backward of a pair side by side; else one after the other.
    """

    def __init__(
        self,
        model: nn.CellList,
        averaging: Averaging,
        is_last: bool,
        enter: Callable[[int, int], None],
        delays_weight_gradients: bool = False,
        takes_turns: bool = True,
    ) -> None:
        self.delays_weight_gradients, self.takes_turns = delays_weight_gradients, takes_turns
        self.model, self.averaging, self.enter = model, averaging, enter
        self.loss_chunk = len(model) - 1 if is_last else None
        self._events = [LayerEvents.of(chunk) for chunk in model]
        self._do: dict[type, Callable[[Any, Tensor | None], Tensor | None]] = {
            Forward: self._forward,
            Backward: self._backward,
            WeightGrad: self._weight_gradients,
        }

    def begin(
        self,
        forward_step: ForwardStep,
        train: bool,
        split: frozenset[Backward] = frozenset(),
        completing: frozenset[Compute] = frozenset(),
    ) -> None:
        """Start a step: forget the last one's losses. train: forwards keep their graphs for backwards. split: the
        backwards whose weight gradients are an action of their own; completing: the computations after which a chunk's
        gradients are complete."""
        self.forward_step, self.train, self._split = forward_step, train, split
        self._completing = completing
        self.losses: list[MicroBatchLoss] = []
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._deferred: dict[tuple[int, int], autograd.DeferredGradients] = {}

    def compute(self, entry: Ordered, received: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Carry out a computation, or a pair of them, and return the result of each: of a forward the output or loss,
        of a backward the gradient of the forward's input (None where that had no input), of weight gradients None.
        received: for each, the tensor that it needs from another stage or chunk, or None."""
        if isinstance(entry, Pair) and self.takes_turns:
            return self._side_by_side(entry, *received)
        return [self._run(action, tensor) for action, tensor in zip(of_entry(entry), received, strict=True)]

    def _run(self, action: Compute, received: Tensor | None) -> Tensor | None:
        self.enter(action.micro_batch, action.chunk)
        return self._do[type(action)](action, received)

    def _side_by_side(
        self, pair: Pair, hidden_states: Tensor | None, gradient: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """(The forward's result, the backward's), computed in turns. The backward begins, so that its first message
        leaves early."""
        put_off = autograd.DeferredGradients()

        def backward() -> Tensor | None:
            delay = autograd.deferred_weight_gradients(put_off) if self.delays_weight_gradients else nullcontext()
            with delay:
                result = self._run(pair.backward, gradient)
            put_off.run()
            return result

        gradient, hidden_states = Turns(
            Computation(backward, put_off.run), Computation(partial(self._run, pair.forward, hidden_states))
        ).run()
        return hidden_states, gradient

    def _forward(self, action: Forward, hidden_states: Tensor | None) -> Tensor:
        """hidden_states [s, b, h] of the chunk before (None for the first chunk) -> this chunk's, or the loss."""
        micro_batch, chunk = action.micro_batch, action.chunk
        model = self.model[chunk]
        with autograd.recording(self.train), self._events[chunk].forward() as uses:
            received = autograd.leaf(hidden_states) if self.train and hidden_states is not None else hidden_states
            model.set_input_tensor(received)
            output, loss_of = self.forward_step(model, micro_batch, chunk)
            seed = None
            if chunk == self.loss_chunk:
                output, seed = self._loss(loss_of(output))
            if self.train:
                self._pending[micro_batch, chunk] = _Pending(received, uses, autograd.HandedOver(output), seed)
        return output

    def _loss(self, of_micro_batch: MicroBatchLoss) -> tuple[Tensor, Tensor]:
        """Keep a micro-batch's loss for the end of the step; (the loss, the gradient from which its backward
        starts)."""
        self.losses.append(of_micro_batch)
        loss, seed = of_micro_batch.loss, self.averaging.seed(of_micro_batch.weight)
        return loss, as_type(np.full(loss.shape, seed, np.float32), loss.dtype)

    def _backward(self, action: Backward, gradient: Tensor | None) -> Tensor | None:
        """gradient [s, b, h] of what the forward returned (None for the loss) -> gradient of its input; None if it had
        none."""
        micro_batch, chunk = action.micro_batch, action.chunk
        pending = self._pending.pop((micro_batch, chunk))
        self._events[chunk].is_last_micro_batch = action in self._completing
        upstream = gradient if pending.seed is None else pending.seed
        assert upstream is not None, f"no gradient was received for micro-batch {micro_batch} of chunk {chunk}"
        put_off = autograd.deferred_weight_gradients() if action in self._split else nullcontext()
        with put_off as deferred, self._events[chunk].backward(pending.uses):
            pending.end.backward(upstream)
        if deferred is not None:
            self._deferred[micro_batch, chunk] = deferred
        return None if pending.input is None else autograd.take_gradient(pending.input)

    def _weight_gradients(self, action: WeightGrad, received: Tensor | None) -> None:
        self._events[action.chunk].is_last_micro_batch = action in self._completing
        self._deferred.pop((action.micro_batch, action.chunk)).run()
