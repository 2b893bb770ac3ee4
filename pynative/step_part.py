"""Interface of model parts that act around a training step or an evaluation, besides forwards, backwards and update."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from parallel_core.numerics.dtypes import Array


class StepPart:
    """A model part with hooks around a step, such as hot experts; all ranks call a hook together. The hooks of this
    class do nothing."""

    def around(self, train: bool) -> AbstractContextManager[None]:
        """Context around the forwards and backwards of a training step (`train`), also when they are run again
        (--rerun-mode), or around the forwards of an evaluation."""
        return nullcontext()

    def after_step(self) -> None:
        """Act after a step's backwards and before its update, also when the update is skipped; in a script's own loop
        (`ForwardBackward`) once the gradients are reduced."""

    def after_update(self, figures: Mapping[str, Array]) -> None:
        """Act after an update that was not skipped; in a script's own loop (`ForwardBackward`) once the gradients are
        reduced, before the script's update. figures: the job's, named as in `parallel_core.step_figures`."""


@contextmanager
def around(parts: Iterable[StepPart], train: bool) -> Iterator[None]:
    """Context of all parts' `around`: of one training step, or of an evaluation's batches, between which no weight
    changes."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.around(train))
        yield
