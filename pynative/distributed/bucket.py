"""A bucket: what of a buffer is reduced, and later gathered, by one collective."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mindspore import Parameter, Tensor

from parallel_core.buffers import Collective, Span
from pynative import kernels, parallel_state
from pynative.distributed.flat_memory import Memory
from pynative.memory import in_place
from pynative.parameter import type_name, type_of
from pynative.step_position import get_step_position


class ParamAndGradBucket:
    """Parameters whose gradients are summed over the replicas together, under Megatron's names.

    A sum is started once a step: by whoever knows that the bucket's gradients are complete, else at the step's end.
    sent_as: the type in which gradients are sent, if it is not their own.
    """

    def __init__(
        self,
        span: Span,
        params: Sequence[Parameter],
        gradients: Memory,
        parameters: Memory,
        reductions: Sequence[Collective],
        gathers: Sequence[Collective],
        sent_as: str | None = None,
    ) -> None:
        self.span, self.params, self._sent_as = span, list(params), sent_as
        self._gradient = gradients.span(*span)
        self.about = self.params[0].meta.spec.name + (f" and {len(self.params) - 1} more" if self.params[1:] else "")
        """What it is, in messages."""
        self._reductions = [(one, *operands(one, gradients)) for one in reductions]
        self._gathers = [(one, *operands(one, parameters)) for one in gathers]
        self._grad_work: Waited | None = None
        self._param_works: list[Waited] = []
        self._grad_sync_is_due = True
        self.factor_before_sum = 1.0
        """What this rank's gradients are multiplied with."""
        self.is_averaged = False
        """Whether `average_gradients` was called."""
        self._ready: set[int] = set()
        self.is_checked = False
        """Whether gradients that are not finite are an error."""

    def empty_gradients(self, factor_before_sum: float = 1.0) -> None:
        """Forget the gradients; the next ones are multiplied by the factor before they are summed over the replicas."""
        self.factor_before_sum, self._grad_sync_is_due, self.is_averaged = factor_before_sum, True, False
        self._ready.clear()
        for parameter in self.params:
            parameter.meta.main_grad_is_empty = True
            parameter.meta.main_grad_is_final = False

    def zero_unused_gradients(self) -> None:
        """Parameters that no backward reached have gradient zero, not last step's."""
        for meta in (parameter.meta for parameter in self.params):
            if meta.main_grad_is_empty:
                kernels.fill_(meta.main_grad, 0.0)
                meta.main_grad_is_empty = False

    def check_gradients(self) -> None:
        """Raise FloatingPointError, which names rank, parameter and micro-batch, if what this rank added up so far is
        not finite and that is an error."""
        if self.is_checked and not math.isfinite(kernels.squared_norm(self._gradient)):
            for parameter in self.params:
                meta = parameter.meta
                if not meta.main_grad_is_empty and not math.isfinite(kernels.squared_norm(meta.main_grad)):
                    raise _not_finite(meta.spec.name)

    def start_grad_sync(self) -> None:
        """Start the sum of the gradients over the replicas; nothing if that was done before."""
        if not self._grad_sync_is_due:
            return
        self._grad_sync_is_due = False
        self.zero_unused_gradients()
        self.check_gradients()
        if self.factor_before_sum != 1.0:
            kernels.scale_(self._gradient, self.factor_before_sum)
        for parameter in self.params:
            parameter.meta.main_grad_is_final = True
        for reduction, given, result in self._reductions[:1]:
            self._grad_work = started(reduction, given, result, f"gradients of {self.about}", self._sent_as)

    def finish_grad_sync(self) -> None:
        """Wait until the gradients that this rank owns are the replicas' sum."""
        if self._grad_work is not None:
            self._grad_work.wait()
            self._grad_work = None
            for reduction, given, result in self._reductions[1:]:
                started(reduction, given, result, f"gradients of {self.about}", self._sent_as).wait()

    def average_gradients(self, factor: float) -> None:
        """Wait until the gradients that this rank owns are the replicas' sum times the factor, of which
        `factor_before_sum` is a part. Once a step."""
        self.finish_grad_sync()
        rest = factor / self.factor_before_sum
        if rest != 1.0:
            kernels.scale_(self._reductions[-1][2] if self._reductions else self._gradient, rest)
        self.is_averaged = True

    def start_param_sync(self) -> None:
        """Start to gather the parameters, of which this rank has updated those that it owns."""
        self._param_works = [started(*gather, f"parameters {self.about}") for gather in self._gathers]

    def finish_param_sync(self) -> None:
        """Wait until the parameters are whole."""
        for work in self._param_works:
            work.wait()
        self._param_works = []

    # The names of the earlier system.

    issue_grad_reduce = start_grad_sync
    final_grad_reduce = finish_grad_sync

    def reset(self) -> None:
        """Forget the gradients."""
        self.empty_gradients(self.factor_before_sum)

    def register_grad_ready(self, parameter: Parameter) -> None:
        """A script with a backward of its own says that a parameter's gradient is complete; the last one starts the
        sum."""
        self._ready.add(id(parameter))
        if len(self._ready) == len(self.params):
            self.start_grad_sync()


def _not_finite(name: str) -> FloatingPointError:
    position = get_step_position()
    return FloatingPointError(
        f"rank {parallel_state.get_global_rank()}: the gradient of {name} is not finite after micro-batch "
        f"{position.micro_batch} (of the global batch, from 0) of iteration {position.iteration + 1}. Lower --lr or "
        f"--clip-grad, check the data, or train on with --no-check-for-nan-in-loss-and-grad, which skips such updates"
    )


def operands(collective: Collective, memory: Memory) -> tuple[Tensor, Tensor]:
    """What a collective is given and where its result lies: the rank's own part of the span, and all of it."""
    whole = memory.span(*collective.span)
    if collective.operation == "all_reduce":
        return whole, whole
    own = memory.span(*collective.own_part(*parallel_state.get_coordinates()[collective.over]))
    return (own, whole) if collective.operation == "all_gather" else (whole, own)


def look_in() -> None:
    """Move on the collectives that are on their way, without waiting."""
    parallel_state.get_backend().progress()


class Waited(Protocol):
    """A collective on its way."""

    def wait(self) -> object:
        """Until its result is where it belongs."""


class _Converted:
    """A collective whose result comes in another type than it is kept in."""

    def __init__(self, work: Waited, result: Tensor) -> None:
        self._work, self._result = work, result

    def wait(self) -> None:
        """Until its result is where it belongs."""
        in_place.assign(self._result, self._work.wait())


def started(collective: Collective, given: Tensor, result: Tensor, about: str, sent_as: str | None = None) -> Waited:
    """A planned collective, in the operands' type or another; `about` says what the operands are."""
    call = partial(getattr(parallel_state.get_group(collective.over), collective.operation), async_op=True, about=about)
    if sent_as is None or sent_as == type_name(given.dtype):
        return call(given, out=result)
    return _Converted(call(given.astype(type_of(sent_as))), result)
