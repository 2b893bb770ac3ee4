"""Checks of batches and of the model's calls with them: a mistake raises ValueError with the rank and the step, before
the weights are updated."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from parallel_core.batch.micro_batches import LABELS, LOSS_MASK, TOKENS, BatchEntry
from parallel_core.batch.rules import BatchRules
from pynative import parallel_state
from pynative.context_parallel.batch import entry_of
from pynative.memory.arrays import array_type
from pynative.step_position import get_step_position


def refuse(mistakes: Iterable[str]) -> None:
    """Raise ValueError with all mistakes, each behind the number of this rank (from 0) and of the step (from 1); do
    nothing if there are none."""
    lines = list(mistakes)
    if lines:
        where = f"rank {parallel_state.get_global_rank()}, step {get_step_position().iteration + 1}"
        raise ValueError("\n".join(f"{where}: {line}" for line in lines))


@cache
def _arguments(construct: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The arguments of a `construct` but `self`, by name."""
    return dict(list(inspect.signature(construct).parameters.items())[1:])


def wrong_names(
    model: Sequence[nn.Cell], batch: Mapping[str, Any], unread: Callable[[nn.Cell], Collection[str]]
) -> list[str]:
    """Sentences about wrong names in a batch: names that a chunk of the stage needs and the batch lacks, and names that
    the batch has and a chunk does not take. Names in `unread(chunk)` are passed over.

    Where its `construct` has an argument of that name, the pipeline's first chunk needs tokens, and its last one
    labels, for the loss, even if the argument has a default; there, None counts as missing.
    """
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    found: dict[str, None] = {}
    for chunk in model:
        arguments, of = _arguments(type(chunk).construct), type(chunk).__name__
        ends = [TOKENS] * (first and chunk is model[0]) + [LABELS] * (last and chunk is model[-1])
        missing = [name for name, argument in arguments.items() if _is_required(argument) and name not in batch]
        missing += [name for name in ends if name in arguments and batch.get(name) is None and name not in missing]
        takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
        unknown = [] if takes_any else [name for name in batch if name not in arguments]
        has, takes = ", ".join(batch) or "nothing", ", ".join(arguments)
        lines = [(name, f"{name} is missing: {of} needs it, the batch has {has}") for name in missing]
        lines += [(name, f"{name} is no argument of {of}, which takes {takes}") for name in unknown]
        found |= {line: None for name, line in lines if name not in unread(chunk)}
    return list(found)


def _is_required(argument: inspect.Parameter) -> bool:
    return argument.default is argument.empty and argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)


class CheckedCalls:
    """Checks that the arguments with which a script's forward_step_func calls chunks of the model keep the batch's
    rules."""

    def __init__(self) -> None:
        self.weighs_tokens = False
        """Whether a loss mask was drawn that is not all ones; set by the caller."""
        self._chunks: list[nn.Cell] = []
        self._rules: BatchRules | None = None
        self._gave_a_mean = False

    @contextmanager
    def of(self, chunk: nn.Cell, rules: BatchRules) -> Iterator[None]:
        """Check each call of the chunk within the block. ValueError if its arguments break the rules; if it has no
        tokens, though this is the pipeline's first chunk and takes them; or if `weighs_tokens` is set and a call that
        gives a mean loss has no loss mask. It gives one if it has labels and the chunk takes a loss mask."""
        if not any(chunk is known for known in self._chunks):
            chunk.register_forward_pre_hook(self._check, with_kwargs=True)
            self._chunks.append(chunk)
        self._rules, self._gave_a_mean = rules, False
        try:
            yield
        finally:
            self._rules = None

    def check_sum(self, rules: BatchRules) -> None:
        """Raise ValueError if, with context parallelism, the last call in the latest `of` block gave a mean loss: it
        had labels, and the chunk takes a loss mask. This is for a script that returns a sum of losses, which must be of
        this rank's tokens, while the model's mean is of whole sequences."""
        rule = "with --context-parallel-size the model's loss is the whole sequences' mean"
        fix = "return (loss, {name: loss}), or sum the losses of logits"
        refuse([f"forward_step_func: {rule}; {fix}"] * (self._gave_a_mean and rules.context_parallel_size > 1))

    def _check(self, chunk: nn.Cell, values: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._rules is None:
            return
        arguments = _arguments(type(chunk).construct)
        given = dict(zip(arguments, values, strict=False)) | named
        given = {name: value for name, value in given.items() if value is not None}
        mistakes = self._rules.mistakes(
            {name: _on_host(name, value) for name, value in given.items()}, shards=self._rules.context_parallel_size
        )
        if TOKENS in arguments and TOKENS not in given and parallel_state.is_pipeline_first_stage():
            mistakes.append(f"tokens is missing: the first stage needs it, it was called with {', '.join(given)}")
        self._gave_a_mean = LABELS in given and LOSS_MASK in arguments
        if self._gave_a_mean and self.weighs_tokens and LOSS_MASK not in given:
            mistakes.append("loss_mask is missing: the model gives the mean of the losses that count; pass it, too")
        refuse(mistakes)


def _on_host(name: str, value: Any) -> Any:
    """An argument of a chunk as the batch's entry of this name, in host memory, for the rules. For what a script
    computed on an Ascend zeros stand in, so that type and shape are judged without waiting for the device."""
    if not isinstance(value, Tensor) or hasattr(value, "batch_entry") or ms.get_context("device_target") == "CPU":
        return entry_of(name, value)
    return BatchEntry(np.broadcast_to(np.zeros((), array_type(value.dtype)), value.shape))
