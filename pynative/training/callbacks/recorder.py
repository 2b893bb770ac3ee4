"""The work of a rank in a step as spans of time: for a trace, and for the comparison of a step with its plan."""

from collections.abc import Iterator

from parallel_core.schedules.actions import Backward, Compute, Forward, Pair, WeightGrad
from parallel_core.trace import PIPELINE, Kind, Span
from pynative import parallel_state
from pynative.collectives.trace import Count
from pynative.timers import Timed, Timers
from pynative.training.train_step import StepResult

KINDS = {
    "step": Kind.STEP,
    "zero-grad-buffer": Kind.OTHER,
    "forward-backward": Kind.OTHER,
    "batch-generator": Kind.DATA,
    "forward-compute": Kind.FORWARD,
    "backward-compute": Kind.BACKWARD,
    "weight-gradients-compute": Kind.WEIGHT_GRADIENTS,
    "forward-and-backward-compute": Kind.PAIR,
    "forward-recv": Kind.WAITING,
    "backward-recv": Kind.WAITING,
    "loss-reduce": Kind.OTHER,
    "all-grads-sync": Kind.OTHER,
    "optimizer-clip-main-grad": Kind.OPTIMIZER,
    "before-update": Kind.OTHER,
    "optimizer": Kind.OPTIMIZER,
    "save-checkpoint": Kind.CHECKPOINT,
}
"""The kind of work that each timer is around, by the timer's name."""
SHORTEST = 1e-6
"""Seconds that a wait for others, or the moving of data, within a collective must exceed to be a span of its own."""


class Recorder:
    """Records spans while at least one caller has called `begin` and not yet `end`. Every caller calls `spans_of` after
    each step."""

    def __init__(self, timers: Timers) -> None:
        self._timers, self._asking = timers, 0
        self._of: StepResult | None = None
        self._spans: list[Span] = []

    def begin(self) -> None:
        """Record from now on; called between two steps."""
        if self._asking == 0:
            self._turn(True)
        self._asking += 1

    def end(self) -> None:
        """Stop recording, unless another caller still records."""
        self._asking -= 1
        if self._asking == 0:
            self._turn(False)

    def spans_of(self, result: StepResult) -> list[Span]:
        """This rank's spans since recording began or a caller took those of another step, in seconds of this process's
        `perf_counter`; called when a step has ended. result: the step's; a call with the same one as the call before
        gets the same spans."""
        if self._of is not result:
            timed, counts = self._timers.recorded or [], parallel_state.get_world_group().trace.counts
            rank = parallel_state.get_global_rank()
            self._of, self._spans = result, [*_of_timers(timed, rank), *_of_messages(counts, rank)]
            self._turn(True)
        return self._spans

    def _turn(self, keeps: bool) -> None:
        """Start or stop keeping the times of timers and collectives; those kept so far are forgotten."""
        self._timers.recorded = [] if keeps else None
        parallel_state.get_world_group().trace.keeps_intervals = keeps


def _of_timers(timed: list[Timed], rank: int) -> Iterator[Span]:
    for part in timed:
        if part.name in KINDS:
            group = PIPELINE if part.name.endswith("-recv") else ""
            yield Span(rank, KINDS[part.name], _name(part), part.start, part.stop - part.start, 0, group)


def _name(part: Timed) -> str:
    action = part.about
    if isinstance(action, Pair):
        return f"forward {_place(action.forward)}, backward {_place(action.backward)}"
    if isinstance(action, Forward | Backward | WeightGrad):
        return f"{part.name.removesuffix('-compute')} {_place(action)}"
    return part.name


def _place(action: Compute) -> str:
    return f"{action.micro_batch}.{action.chunk}"


def _of_messages(counts: dict[tuple[str, str], Count], rank: int) -> Iterator[Span]:
    for (group, operation), count in counts.items():
        for start, stop in count.intervals or ():
            yield Span(rank, Kind.COLLECTIVE, operation, start, stop - start, 0, group)
        for start, stop, idle in count.stays or ():
            name = f"{operation} of {group}"
            if idle > SHORTEST:
                yield Span(rank, Kind.WAITING, name, start, idle, 0, group)
            if stop - start - idle > SHORTEST:
                yield Span(rank, Kind.MOVING, name, start + idle, stop - start - idle, 0, group)
