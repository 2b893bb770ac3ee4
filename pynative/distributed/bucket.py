"""A bucket: a part of a flat buffer whose gradients are reduced together and, with ZeRO stage 1 or 2, whose parameters
are gathered together after the update."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mindspore import Parameter, Tensor

from parallel_core.buffers.collectives import Collective
from parallel_core.buffers.layout import Span
from pynative import kernels, parallel_state
from pynative.collectives import Handle
from pynative.distributed.flat_memory import Memory
from pynative.memory import in_place
from pynative.parameter import type_name, type_of
from pynative.step_position import get_step_position


@dataclass(frozen=True)
class Transfer:
    """A planned collective over fixed memory, whose values each `start` takes. given, result: the memory that it sends,
    and that it fills; sent_as: the type in which the values travel, None: their own."""

    collective: Callable[..., Handle]
    """The group's method that starts the collective."""
    given: Tensor
    result: Tensor
    """The memory in which its result is written."""
    about: str
    """The name of the operands in messages."""
    sent_as: str | None = None
    """The type in which the operands travel; None: their own."""

    @classmethod
    def of(cls, planned: Collective, memory: Memory, about: str, sent_as: str | None = None) -> "Transfer":
        """The collective over the planned span of `memory`: a gather sends the rank's own part and fills the span, a
        reduce-scatter sends the span and fills the own part, an all-reduce does both with the span. about: the name of
        the operands in messages. sent_as: the type in which they travel; None: their own."""
        whole = memory.span(*planned.span)
        collective = partial(getattr(parallel_state.get_group(planned.over), planned.operation), async_op=True)
        if planned.operation == "all_reduce":
            return cls(collective, whole, whole, about, sent_as)
        own = memory.span(*planned.own_part(*parallel_state.get_coordinates()[planned.over]))
        given, result = (own, whole) if planned.operation == "all_gather" else (whole, own)
        return cls(collective, given, result, about, sent_as)

    def start(self) -> Handle:
        """Start the collective; the handle's `wait` waits until the result is in its memory, with HCCL it makes the
        stream wait instead."""
        if self.sent_as is None or self.sent_as == type_name(self.given.dtype):
            return self.collective(self.given, out=self.result, about=self.about)
        sent = self.collective(self.given.astype(type_of(self.sent_as)), about=self.about)
        return sent.then(partial(in_place.assign, self.result))


MOST_NAMED = 5
"""The largest number of parameters that an error message names."""


class NonFiniteGradients(FloatingPointError):
    """This rank's own gradients are not finite. `fault` says so in a sentence with the rank, the names of parameters
    (at most 5, or the bucket's first) and the iteration; the error's message is `fault` and advice."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        super().__init__(
            f"{fault}. Lower --lr or --clip-grad, check the data, or train on with "
            f"--no-check-for-nan-in-loss-and-grad, which skips such updates"
        )


class ParamAndGradBucket:
    """Parameters whose gradients are summed over the replicas together.

    The sum is started at most once after each `empty_gradients`; a subclass may do it in every micro-batch.
    gradients, parameters: the buffer's memory, by the plan's addresses. reductions: the collectives that, one after the
    other, sum over the replicas; gathers: those that make the parameters whole after an update. sent_as: the type in
    which gradients are sent, if it is not their own.
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
        self.span, self.params = span, list(params)
        self._gradient = gradients.span(*span)
        self.about = self.params[0].meta.spec.name + (f" and {len(self.params) - 1} more" if self.params[1:] else "")
        """The bucket's name in messages."""
        self._reductions = [Transfer.of(one, gradients, f"gradients of {self.about}", sent_as) for one in reductions]
        self._gathers = [Transfer.of(one, parameters, f"parameters {self.about}") for one in gathers]
        self._grad_work: Handle | None = None
        self._param_works: list[Handle] = []
        self._grad_sync_is_due = True
        self.factor_before_sum = 1.0
        """Factor of this rank's gradients before they are summed over the replicas."""
        self.is_averaged = False
        """Whether `average_gradients` was called since the gradients were emptied."""
        self._ready: set[int] = set()
        self.is_checked = False
        """Whether gradients of this rank that are not finite are an error."""
        self._finite: list[Tensor] = []

    def empty_gradients(self, factor_before_sum: float = 1.0) -> None:
        """Mark the gradients as empty, so that the next contribution overwrites; factor_before_sum multiplies them
        before they are summed over the replicas."""
        self.factor_before_sum, self._grad_sync_is_due, self.is_averaged = factor_before_sum, True, False
        self._ready.clear()
        self._finite.clear()
        for parameter in self.params:
            parameter.meta.main_grad_is_empty = True
            parameter.meta.main_grad_is_final = False

    def zero_unused_gradients(self) -> None:
        """Write zeros as the gradients of parameters to which nothing was added since they were emptied, in place of
        the earlier ones."""
        for meta in (parameter.meta for parameter in self.params):
            if meta.main_grad_is_empty:
                kernels.fill_(meta.main_grad, 0.0)
                meta.main_grad_is_empty = False

    def check_gradients(self) -> None:
        """Raise NonFiniteGradients if this rank's gradients were not finite when `start_grad_sync` started their sum
        with `is_checked` on. To be called after the sum, in which the parameters to be named are found."""
        if not all(finite.asnumpy().item() for finite in self._finite):
            rank, iteration = parallel_state.get_global_rank(), get_step_position().iteration + 1
            raise NonFiniteGradients(
                f"rank {rank}: the gradient of {self._spoiled()} is not finite in iteration {iteration}"
            )

    def _spoiled(self) -> str:
        """The names of the parameters, at most MOST_NAMED, whose summed gradients are not finite, as text; the bucket's
        own name if the sum shows none."""
        gradients = {p.meta.spec.name: p.meta.main_grad for p in self.params}
        found = [name for name, gradient in gradients.items() if not math.isfinite(kernels.squared_norm(gradient))]
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        return ", ".join(found[:MOST_NAMED]) + more or self.about

    def start_grad_sync(self) -> None:
        """Start the sum of the gradients over the replicas; nothing if it was started since the gradients were
        emptied."""
        if not self._grad_sync_is_due:
            return
        self._grad_sync_is_due = False
        self.zero_unused_gradients()
        if self.is_checked:
            self._finite.append(kernels.all_finite(self._gradient))
        if self.factor_before_sum != 1.0:
            kernels.scale_(self._gradient, self.factor_before_sum)
        for parameter in self.params:
            parameter.meta.main_grad_is_final = True
        for reduction in self._reductions[:1]:
            self._grad_work = reduction.start()

    def finish_grad_sync(self) -> None:
        """Wait until the gradients that this rank owns are the replicas' sum, if `start_grad_sync` started it; nothing
        if it was waited for already."""
        if self._grad_work is not None:
            self._grad_work.wait()
            self._grad_work = None
            for reduction in self._reductions[1:]:
                reduction.start().wait()

    def average_gradients(self, factor: float) -> None:
        """Wait until the gradients that this rank owns are summed over the replicas, and make them the sum times
        `factor`, of which the part `factor_before_sum` was multiplied in before the sum. Call it once a step,
        after `start_grad_sync`."""
        self.finish_grad_sync()
        rest = factor / self.factor_before_sum
        if rest != 1.0:
            kernels.scale_(self._reductions[-1].result if self._reductions else self._gradient, rest)
        self.is_averaged = True

    def start_param_sync(self) -> None:
        """Start to gather the bucket's parameters, of which each rank has updated the part that it owns."""
        self._param_works = [gather.start() for gather in self._gathers]

    def finish_param_sync(self) -> None:
        """Wait until the bucket's parameters are whole, if a gather was started."""
        for work in self._param_works:
            work.wait()
        self._param_works = []

    # The names of MindSpeed-Core-MS.

    def issue_grad_reduce(self) -> None:
        """Start the sum of the gradients over the replicas, as `start_grad_sync` does."""
        self.start_grad_sync()

    def final_grad_reduce(self) -> None:
        """Wait for the sum, as `finish_grad_sync` does."""
        self.finish_grad_sync()

    def reset(self) -> None:
        """Mark the gradients as empty, as `empty_gradients` does, and leave `factor_before_sum` as it is."""
        self.empty_gradients(self.factor_before_sum)

    def register_grad_ready(self, parameter: Parameter) -> None:
        """Note, for a script that runs backwards itself, that the gradient of a parameter of this bucket is complete;
        when all are, the sum is started. Raises ValueError for a parameter of another bucket."""
        if all(parameter is not own for own in self.params):
            raise ValueError(f"register_grad_ready: {parameter.name} is not among the parameters of {self.about}")
        self._ready.add(id(parameter))
        if len(self._ready) == len(self.params):
            self.start_grad_sync()
