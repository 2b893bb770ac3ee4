"""Parts of the model that act around a training step, beside its forwards, backwards and update."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from parallel_core.numerics.dtypes import Array


class StepPart:
    """A part that acts at its hooks; whoever runs a step calls them on all ranks."""

    def around(self, train: bool) -> AbstractContextManager[None]:
        """Around the forwards and, where it trains, the backwards of a step."""
        return nullcontext()

    def after_step(self) -> None:
        """Act after a step's backwards, ahead of the update, if one is made."""

    def after_update(self, figures: Mapping[str, Array]) -> None:
        """Act after an update that was made; figures: what cells reported, by the names of
        `parallel_core.step_figures`."""


@contextmanager
def around(parts: Iterable[StepPart], train: bool) -> Iterator[None]:
    """All parts' `around`: of one training step, or of an evaluation's batches, between which no weight changes."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.around(train))
        yield
