"""Two ways to say what a micro-batch's forward is: a batch function with the model's arguments, or Megatron's form."""

from collections.abc import Callable, Iterator
from itertools import tee
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core.averaging import MicroBatchWeight
from pynative import parallel_state
from pynative.context_parallel.batch import get_batch_on_this_cp_rank, is_piece, piece
from pynative.context_parallel.loss import sum_over_group
from pynative.pipeline_parallel.stage import LossOf


def _cut(value: Any, micro_batch: int, micro_batches: int, name: str) -> Any:
    """A micro-batch's rows of one batch entry."""
    if not isinstance(value, Tensor | np.ndarray):
        return value
    rows = value.shape[0]
    if rows % micro_batches:
        raise ValueError(
            f"get_batch_func: {name!r} has {rows} rows, which --global-batch-size cuts into {micro_batches} "
            f"micro-batches: return micro_batch_num x micro_batch_size rows along dimension 0"
        )
    size = rows // micro_batches
    # Cut in numpy: on a CPU each of MindSpore's own operators leaves a thread spinning for a tenth of a second.
    array = value.asnumpy() if isinstance(value, Tensor) else value
    rows_here = np.ascontiguousarray(array[micro_batch * size : (micro_batch + 1) * size])
    return piece(rows_here) if is_piece(value) else Tensor.from_numpy(rows_here)


def _tokens(arguments: dict[str, Any]) -> float:
    """How many tokens of a micro-batch count: those of its loss mask, or all labels; of whole sequences."""
    mask, labels = arguments.get("loss_mask"), arguments.get("labels")
    counted = labels if mask is None else mask
    if counted is None:
        return 1.0
    own = float(counted.size) if mask is None else float(mask.asnumpy().sum(dtype=np.float64))
    return sum_over_group([own], parallel_state.get_context_parallel_group())[0] if is_piece(counted) else own


class BatchedForwardStep:
    """`get_batch_func(data_iterator)` gives the model's keyword arguments for all of this rank's micro-batches."""

    draws = 1

    def __init__(self, get_batch_func: Callable[[Iterator], dict[str, Any]], micro_batches: int) -> None:
        self.get_batch_func, self.micro_batches = get_batch_func, micro_batches

    def begin(self, data_iterator: Iterator, chunks: int) -> None:
        """Fetch a step's batch, for all chunks of the stage."""
        self.batch = self.get_batch_func(data_iterator)

    def __call__(self, model: nn.Cell, micro_batch: int, chunk: int) -> tuple[Tensor, LossOf]:
        """Run the model on a micro-batch's rows; its result on the last stage is the mean loss."""
        arguments = {name: _cut(value, micro_batch, self.micro_batches, name) for name, value in self.batch.items()}
        output = model(**get_batch_on_this_cp_rank(arguments))
        return output, lambda loss: (loss, MicroBatchWeight(_tokens(arguments)), None)


class MegatronForwardStep:
    """`forward_step_func(data_iterator, model)` gives the model's output and a function from it to the loss.

    That function returns (loss, {name: reported}) or (sum of losses, number of tokens, {name: reported}); what is
    reported is a number, or a pair (sum, count). With context parallelism sums and counts of the second form are of
    this rank's pieces of the sequences (`get_batch_on_this_cp_rank` cuts them) and are added up here; the loss of the
    first is the whole sequences', as our GPTModel's is.
    """

    def __init__(self, forward_step_func: Callable, micro_batches: int) -> None:
        self.forward_step_func, self.draws = forward_step_func, micro_batches

    def begin(self, data_iterator: Iterator | list[Iterator], chunks: int) -> None:
        """A micro-batch is drawn whenever one runs: from a chunk's own iterator, as Megatron's list has them, or from
        a copy of the only one, so that every chunk sees the same micro-batches."""
        if isinstance(data_iterator, list):
            self.data_iterators = data_iterator
        else:
            self.data_iterators = [data_iterator] if chunks == 1 else list(tee(data_iterator, chunks))

    def __call__(self, model: nn.Cell, micro_batch: int, chunk: int) -> tuple[Tensor, LossOf]:
        """Run the user's function on a chunk's next micro-batch."""
        output, loss_func = self.forward_step_func(self.data_iterators[chunk], model)
        return output, lambda result: self._read(loss_func(result))

    @staticmethod
    def _read(returned: tuple) -> tuple[Tensor, MicroBatchWeight, tuple[float, float] | None]:
        match returned:
            case (loss, dict(report)):
                weight = MicroBatchWeight(1.0)
            case (loss, tokens, dict(report)):
                return MegatronForwardStep._read_sum(loss, _number(tokens)[0], report)
            case _:
                raise ValueError(
                    "forward_step_func: its loss function must return (loss, dict) or (loss sum, number of tokens, "
                    f"dict), got {type(returned).__name__} of {len(returned) if isinstance(returned, tuple) else 1}"
                )
        return loss, weight, _reported(report)

    @staticmethod
    def _read_sum(
        loss: Tensor, own_tokens: float, report: dict[str, Any]
    ) -> tuple[Tensor, MicroBatchWeight, tuple[float, float]]:
        own = _reported(report) or (float(loss.asnumpy()), own_tokens)
        group = parallel_state.get_context_parallel_group()
        tokens, total, count = sum_over_group((own_tokens, *own), group)
        return loss, MicroBatchWeight(tokens, is_mean=False), (total, count)


def _reported(report: dict[str, Any]) -> tuple[float, float] | None:
    """The first reported number as (sum, count)."""
    if not report:
        return None
    values = _number(next(iter(report.values())))
    return values[0], values[1] if len(values) > 1 else 1.0


def _number(value: Any) -> list[float]:
    """A number, a tensor, or a pair of either as floats."""
    if isinstance(value, Tensor):
        return [float(v) for v in value.asnumpy().reshape(-1)]
    if isinstance(value, tuple | list):
        return [number for part in value for number in _number(part)]
    return [float(value)]
