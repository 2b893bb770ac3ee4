"""The forward of a micro-batch in its two forms: the model called with a batch's entries, or Megatron's
forward_step_func."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import tee
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core.batch.micro_batches import LENGTHS, LOSS_MASK, TOKENS, BatchEntry, StepBatch, filled_up
from parallel_core.batch.rules import BatchRules
from parallel_core.data.loader import StepItem
from parallel_core.numerics.averaging import MicroBatchWeight
from parallel_core.numerics.dtypes import Array
from pynative import parallel_state
from pynative.collectives.numbers import sum_over_group
from pynative.context_parallel.batch import context_shard, entry_of, to_tensor
from pynative.pipeline_parallel.stage import LossOf, MicroBatchLoss
from pynative.training.batch_check import CheckedCalls, refuse, wrong_names


def unread_entries(model: nn.Cell) -> frozenset[str]:
    """Names of the batch's entries that a chunk has no use for, such as a middle stage's tokens: its `unread_entries`,
    or none if the model does not say."""
    return getattr(model, "unread_entries", frozenset())


class BatchedForwardStep:
    """The forward whose `get_batch_func(data_iterator)` gives the model's keyword arguments for all of this rank's
    micro-batches.

    Without get_batch_func each item of the data iterator is a dict of these arguments; a stage that reads nothing of an
    item, such as one in the middle of a pipeline, then draws no further item as long as it is given the same iterator:
    its later batches are empty.
    """

    draws = 1

    def __init__(self, get_batch_func: Callable[[Iterator[Any] | None], dict[str, Any]] | None = None) -> None:
        self.get_batch_func = get_batch_func
        self.is_of_a_script = get_batch_func is not None
        self._unread: Iterator[Any] | None = None
        self._item: Any = None
        self._rows = 1

    def begin(
        self, data_iterator: Iterator[Any] | None, model: Sequence[nn.Cell], micro_batches: int, rules: BatchRules
    ) -> None:
        """Draw a step's batch, for all chunks (`model`) of the stage. Raises ValueError if it is not a dict of the
        model's arguments that keeps the rules."""
        unread = frozenset.intersection(*map(unread_entries, model))
        batch = self._next(data_iterator) if self.get_batch_func is None else self.get_batch_func(data_iterator)
        if not isinstance(batch, dict):
            whose = "the loader" if self.get_batch_func is None else "get_batch_func"
            refuse([f"{whose} gave a {type(batch).__name__}: must be a dict of the model's arguments by name"])
        entries = {name: entry_of(name, value) for name, value in batch.items() if name not in unread}
        if entries.keys() <= {LENGTHS} and self.get_batch_func is None:
            self._unread = data_iterator
        if rules.fills_up:
            entries = filled_up(entries, rules.micro_batch_size * micro_batches)
        given = {name: value for name, value in batch.items() if name != LENGTHS}
        refuse([*wrong_names(model, given, unread_entries), *rules.mistakes(entries, micro_batches)])
        self.batch, self._rows = StepBatch(entries, micro_batches, context_shard()), rules.micro_batch_size

    def again(self) -> None:
        """Do nothing: the batch is still there."""

    def drawn_tokens(self) -> Sequence[Array]:
        """The batch's tokens by micro-batch, [b, s] each, whole sequences where they are known; empty where this stage
        reads none."""
        entry = self.batch.entries.get(TOKENS)
        return np.split(entry.sequences, self.batch.micro_batches) if isinstance(entry, BatchEntry) else []

    def described(self, micro_batch: int, row: int) -> str:
        """The sample and, where the data set tells them, the documents of a micro-batch's row, as the item that was
        drawn last describes them; "" with get_batch_func, for an item that is not our own loader's, and for a row
        beyond its end."""
        number = micro_batch * self._rows + row
        item = self._item
        return item.described(number) if isinstance(item, StepItem) and number < len(item.samples) else ""

    def _next(self, data_iterator: Iterator[Any] | None) -> dict[str, Any]:
        if data_iterator is self._unread or data_iterator is None:
            return {}
        self._item = item = next(data_iterator)
        return {k: entry for k, entry in item.items() if k != "dataset_id"} if isinstance(item, dict) else item

    def __call__(self, model: nn.Cell, micro_batch: int, chunk: int) -> tuple[Tensor, LossOf]:
        """Run the model on a micro-batch's rows; (its output, the function to the loss: on the last stage the output is
        the mean loss of the micro-batch's tokens)."""
        entries = self.batch.micro_batch(micro_batch, unread_entries(model))
        output = model(**{name: to_tensor(entry) for name, entry in entries.items()})
        return output, lambda loss: MicroBatchLoss(loss, MicroBatchWeight(self.batch.tokens(micro_batch)))


class MegatronForwardStep:
    """The forward by `forward_step_func(data_iterator, model)`, which returns the model's output and a function from it
    to the loss.

    The script's function draws the loader's items, those that are dicts with tensors in place of numpy arrays; on a
    rank without data the iterator is None. The loss function returns (loss, {name: reported}) or (sum of losses, number
    of tokens, {name: reported}); the first reported value is logged, a number or a pair (sum, count), the loss where
    the dict is empty. With context parallelism sums and counts of the second form are of this rank's shards of the
    sequences (`get_batch_on_this_cp_rank` cuts them) and are added up here; the loss of the first is the whole
    sequences', as our GPTModel's is.
    """

    is_of_a_script = True

    def __init__(self, forward_step_func: Callable[..., Any], micro_batches: int) -> None:
        self.forward_step_func, self.draws = forward_step_func, micro_batches
        self._calls = CheckedCalls()
        self._drawn: list[list[Any]] = []

    def begin(
        self,
        data_iterator: Iterator[Any] | list[Iterator[Any] | None] | None,
        model: Sequence[nn.Cell],
        micro_batches: int,
        rules: BatchRules,
    ) -> None:
        """Prepare the iterators of a step; a micro-batch is drawn when it runs: from a chunk's own iterator, as
        Megatron's list has them, or from a copy of the only one, so that every chunk sees the same micro-batches."""
        self._rules, self._drawn = rules, []
        if isinstance(data_iterator, list):
            self.data_iterators = [None if items is None else self._kept(items) for items in data_iterator]
        elif data_iterator is None:
            self.data_iterators = [None] * len(model)
        else:
            self.data_iterators = list(tee(self._kept(data_iterator), len(model)))
            self._drawn *= len(model)

    def _kept(self, items: Iterator[Any]) -> Iterator[Any]:
        """An iterator over the items as tensors, which keeps those that are drawn for `again`."""
        drawn: list[Any] = []
        self._drawn.append(drawn)

        def draw() -> Iterator[Any]:
            for item in items:
                drawn.append(item)
                yield self._as_tensors(item)

        return draw()

    def again(self) -> None:
        """Let every chunk that has an iterator draw once more what was drawn from that iterator in the last step."""
        drawn = iter(self._drawn)
        self.data_iterators = [
            None if items is None else map(self._as_tensors, list(next(drawn))) for items in self.data_iterators
        ]

    def drawn_tokens(self) -> Sequence[Array]:
        """The tokens of each item that was drawn from the first chunk's iterator (of the first chunk that has one) and
        that is a dict with tokens."""
        drawn = self._drawn[0] if self._drawn else []
        tokens = [item[TOKENS] for item in drawn if isinstance(item, dict) and TOKENS in item]
        return [np.asarray(x.asnumpy() if isinstance(x, Tensor) else x) for x in tokens]

    def described(self, micro_batch: int, row: int) -> str:
        """The sample and, where the data set tells them, the documents of a micro-batch's row, as the item with the
        micro-batch's number describes them; "" unless the item is our own loader's and has that row."""
        drawn = self._drawn[0] if self._drawn else []
        item = drawn[micro_batch] if micro_batch < len(drawn) else None
        return item.described(row) if isinstance(item, StepItem) and row < len(item.samples) else ""

    def __call__(self, model: nn.Cell, micro_batch: int, chunk: int) -> tuple[Tensor, LossOf]:
        """Run the script's function on a chunk's next micro-batch; (the model's output, the function to the loss)."""
        with self._calls.of(model, self._rules):
            output, loss_func = self.forward_step_func(self.data_iterators[chunk], model)
        return output, lambda result: self._loss(loss_func(result))

    def _loss(self, returned: tuple[Any, ...]) -> MicroBatchLoss:
        loss = _micro_batch_loss(returned)
        if not loss.weight.is_mean:
            self._calls.check_sum(self._rules)
        return loss

    def _as_tensors(self, item: Any) -> Any:
        """A drawn item with tensors in place of arrays; its ids are checked before the script may send them to a
        device. Raises ValueError for wrong ids."""
        if not isinstance(item, dict):
            return item
        given = {k: value for k, value in item.items() if k != LENGTHS}
        entries = {k: entry_of(k, value) if isinstance(value, np.ndarray) else value for k, value in given.items()}
        if self._rules.fills_up:
            entries = filled_up(entries, self._rules.micro_batch_size)
        refuse(self._rules.wrong_ids(entries))
        mask = entries.get(LOSS_MASK)
        self._calls.weighs_tokens |= isinstance(mask, BatchEntry) and bool((mask.array != 1).any())
        return {name: to_tensor(entry) for name, entry in entries.items()}


def _micro_batch_loss(returned: tuple[Any, ...]) -> MicroBatchLoss:
    """The loss that the tuple of a Megatron loss function says. Raises ValueError for another form."""
    match returned:
        case (loss, dict(report)):
            return MicroBatchLoss(loss, MicroBatchWeight(1.0), lambda: _reported(report))
        case (loss, tokens, dict(report)):
            summed = _SumOfTokens(loss, tokens, report)
            return MicroBatchLoss(loss, summed, summed.reported)
    raise ValueError(
        "forward_step_func: its loss function must return (loss, dict) or (loss sum, number of tokens, dict), got "
        f"{type(returned).__name__} of {len(returned) if isinstance(returned, tuple) else 1}"
    )


class _SumOfTokens:
    """The weight of a loss that is a sum over tokens; its numbers are read from the device when they are asked for, not
    before."""

    is_mean = False

    def __init__(self, loss: Tensor, tokens: Any, report: dict[str, Any]) -> None:
        self._loss, self._tokens, self._report = loss, tokens, report

    @cached_property
    def tokens(self) -> float:
        """The number of tokens of the whole sequences that count."""
        return sum_over_group(_numbers(self._tokens)[:1], parallel_state.get_context_parallel_group())[0]

    def reported(self) -> tuple[float, float]:
        """(Reported sum, its count), over the whole sequences."""
        own = _reported(self._report) or (_numbers(self._loss)[0], _numbers(self._tokens)[0])
        total, count = sum_over_group(own, parallel_state.get_context_parallel_group())
        return total, count


def _reported(report: dict[str, Any]) -> tuple[float, float] | None:
    """The first reported value as (sum, count), of a single number (number, 1); None for an empty report."""
    if not report:
        return None
    values = _numbers(next(iter(report.values())))
    return values[0], values[1] if len(values) > 1 else 1.0


def _numbers(value: Any) -> list[float]:
    """The floats of a number, a tensor, or a pair of either."""
    if isinstance(value, Tensor):
        return [float(v) for v in value.asnumpy().reshape(-1)]
    if isinstance(value, tuple | list):
        return [number for part in value for number in _numbers(part)]
    return [float(value)]
