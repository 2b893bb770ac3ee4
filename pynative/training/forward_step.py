"""Two ways to say what a micro-batch's forward is: a batch function with the model's arguments, or Megatron's form."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import tee
from typing import Any

from mindspore import Tensor, nn

from parallel_core.averaging import MicroBatchWeight
from parallel_core.batch import StepBatch
from pynative import parallel_state
from pynative.collectives.numbers import sum_over_group
from pynative.context_parallel.batch import context_shard, entry_of, to_tensor
from pynative.pipeline_parallel.stage import LossOf, MicroBatchLoss


def unread_entries(model: nn.Cell) -> frozenset[str]:
    """Names of the batch's entries that a chunk has no use for, such as a middle stage's tokens: its `unread_entries`,
    none if the model does not say."""
    return getattr(model, "unread_entries", frozenset())


def unread_by_all(model: Iterable[nn.Cell]) -> frozenset[str]:
    """Names of the entries that none of a stage's chunks reads."""
    return frozenset.intersection(*map(unread_entries, model))


class BatchedForwardStep:
    """`get_batch_func(data_iterator)` gives the model's keyword arguments for all of this rank's micro-batches.

    Without one they are the items of the data iterator; a stage that reads nothing of the first item, as one in the
    middle of a pipeline, draws no other.
    """

    draws = 1

    def __init__(self, get_batch_func: Callable[[Iterator], dict[str, Any]] | None = None) -> None:
        self.get_batch_func = get_batch_func
        self._unread: list[Iterator] = []

    def begin(self, data_iterator: Iterator, model: Sequence[nn.Cell], micro_batches: int) -> None:
        """Fetch a step's batch, for all chunks of the stage."""
        unread = unread_by_all(model)
        batch = (self.get_batch_func or self._next)(data_iterator)
        entries = {name: entry_of(name, value) for name, value in batch.items() if name not in unread}
        if not entries and self.get_batch_func is None and data_iterator not in self._unread:
            self._unread.append(data_iterator)
        self.batch = StepBatch(entries, micro_batches, context_shard())

    def _next(self, data_iterator: Iterator) -> dict[str, Any]:
        if data_iterator in self._unread:
            return {}
        return {name: entry for name, entry in next(data_iterator).items() if name != "dataset_id"}

    def __call__(self, model: nn.Cell, micro_batch: int, chunk: int) -> tuple[Tensor, LossOf]:
        """Run the model on a micro-batch's rows; its result on the last stage is the mean loss."""
        entries = self.batch.micro_batch(micro_batch, unread_entries(model))
        output = model(**{name: to_tensor(entry) for name, entry in entries.items()})
        return output, lambda loss: MicroBatchLoss(loss, MicroBatchWeight(self.batch.tokens(micro_batch)))


class MegatronForwardStep:
    """`forward_step_func(data_iterator, model)` gives the model's output and a function from it to the loss.

    That function returns (loss, {name: reported}) or (sum of losses, number of tokens, {name: reported}); what is
    reported is a number, or a pair (sum, count). With context parallelism sums and counts of the second form are of
    this rank's shards of the sequences (`get_batch_on_this_cp_rank` cuts them) and are added up here; the loss of the
    first is the whole sequences', as our GPTModel's is.
    """

    def __init__(self, forward_step_func: Callable, micro_batches: int) -> None:
        self.forward_step_func, self.draws = forward_step_func, micro_batches

    def begin(self, data_iterator: Iterator | list[Iterator], model: Sequence[nn.Cell], micro_batches: int) -> None:
        """A micro-batch is drawn whenever one runs: from a chunk's own iterator, as Megatron's list has them, or from
        a copy of the only one, so that every chunk sees the same micro-batches."""
        if isinstance(data_iterator, list):
            self.data_iterators = data_iterator
        else:
            self.data_iterators = [data_iterator] if len(model) == 1 else list(tee(data_iterator, len(model)))

    def __call__(self, model: nn.Cell, micro_batch: int, chunk: int) -> tuple[Tensor, LossOf]:
        """Run the user's function on a chunk's next micro-batch."""
        output, loss_func = self.forward_step_func(self.data_iterators[chunk], model)
        return output, lambda result: _micro_batch_loss(loss_func(result))


def _micro_batch_loss(returned: tuple) -> MicroBatchLoss:
    """What Megatron's loss functions return."""
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
    """The weight of a sum of losses; its numbers are read from the device when they are asked for, not before."""

    is_mean = False

    def __init__(self, loss: Tensor, tokens: Any, report: dict[str, Any]) -> None:
        self._loss, self._tokens, self._report = loss, tokens, report

    @cached_property
    def tokens(self) -> float:
        """Of whole sequences."""
        return sum_over_group(_numbers(self._tokens)[:1], parallel_state.get_context_parallel_group())[0]

    def reported(self) -> tuple[float, float]:
        """(sum, count) of whole sequences."""
        own = _reported(self._report) or (_numbers(self._loss)[0], _numbers(self._tokens)[0])
        total, count = sum_over_group(own, parallel_state.get_context_parallel_group())
        return total, count


def _reported(report: dict[str, Any]) -> tuple[float, float] | None:
    """The first reported number as (sum, count)."""
    if not report:
        return None
    values = _numbers(next(iter(report.values())))
    return values[0], values[1] if len(values) > 1 else 1.0


def _numbers(value: Any) -> list[float]:
    """A number, a tensor, or a pair of either as floats."""
    if isinstance(value, Tensor):
        return [float(v) for v in value.asnumpy().reshape(-1)]
    if isinstance(value, tuple | list):
        return [number for part in value for number in _numbers(part)]
    return [float(value)]
