"""--rerun-mode: a step whose result cannot be right is computed again, on the same data, to find out whether and where
it repeats; with report_stats every step is."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from mindspore import nn

from parallel_core.config.faults import REPORT, FaultConfig
from parallel_core.faults import TRANSIENT, Figures, Findings, Place, Spikes, explained, verdict
from pynative import parallel_state
from pynative.collectives.texts import gathered_texts
from pynative.pipeline_parallel.stage import ForwardStep
from pynative.pipeline_parallel.step import GlobalLoss
from pynative.startup.log import log, warn
from pynative.step_position import get_step_position
from pynative.training.non_finite import NonFiniteWatch, non_finite_weights


@dataclass(frozen=True)
class Attempt:
    """The result of a step's forwards and backwards: `own_losses` and `own_fault` are this rank's, the rest is the same
    on every rank."""

    loss: GlobalLoss
    gradient_scale: float
    norm: float
    own_losses: tuple[float, ...] = ()
    """The reported sums of losses of this rank's micro-batches; empty on a stage without the loss."""
    own_fault: str = ""
    """The sentence about gradients of this rank that are not finite; "": none was found."""

    @property
    def figures(self) -> Figures:
        """Loss and gradient norm, by which the result is judged."""
        return Figures(self.loss.mean, self.norm)


class _Cell(Protocol):
    """The parts of a step cell that are used here."""

    model: nn.CellList
    forward_step: ForwardStep


@dataclass(frozen=True)
class Judged:
    """The attempt that counts, and what was found about it."""

    attempt: Attempt
    spike: str = ""
    """The reason why the result of that attempt is a spike; "": it is none."""
    explanation: str = ""
    """The explanation of a result that is not finite and repeats; "": there is none."""


class Rerun:
    """The judge of each step's result, which has a step computed again where its result cannot be right.

    config: --rerun-mode, and the spikes of loss and gradient norm that count as such a result. checks_finite: whether
    a loss or gradient norm that is not finite is such a result, too.
    """

    def __init__(self, config: FaultConfig, checks_finite: bool) -> None:
        self.config, self.checks_finite = config, checks_finite
        self._spikes = (
            Spikes(config.loss_spike_deviations, config.check_for_spiky_loss, config.check_for_large_grads)
            if config.finds_spikes
            else None
        )
        self._twice = self._different = 0

    @property
    def is_on(self) -> bool:
        """Whether a step may be computed again: --rerun-mode is not "disabled"."""
        return self.config.rerun_mode != "disabled"

    def judge(self, first: Attempt, again: Callable[[], Attempt], cell: _Cell) -> Judged:
        """The attempt that counts, judged. With --rerun-mode validate_results a step whose result is not finite (if
        that is checked) or a spike is computed once more by `again()`; the second attempt counts if its loss or norm
        differs from the first's. With report_stats every step is computed once more, and the first attempt counts. All
        ranks call this, and decide the same. cell: the step cell."""
        spike = self._spikes.judge(first.figures) if self._spikes else ""
        is_wrong = self.checks_finite and not first.figures.is_finite
        if self.config.rerun_mode == "report_stats":
            self._compare(first, again())
        elif (is_wrong or spike) and self.is_on:
            return self._examined(first, again, cell, spike)
        if spike and parallel_state.get_global_rank() == 0:
            warn(f"iteration {get_step_position().iteration + 1}: {spike} ({first.figures})")
        return Judged(first, spike)

    def _compare(self, first: Attempt, second: Attempt) -> None:
        self._twice += 1
        self._different += verdict(first.figures, second.figures) == TRANSIENT
        count = self._twice
        if parallel_state.get_global_rank() == 0 and (count & (count - 1) == 0 or count % 100 == 0):
            log(f"--rerun-mode report_stats: {count} steps computed twice, {self._different} of them with other bits")

    def _examined(self, first: Attempt, again: Callable[[], Attempt], cell: _Cell, spike: str) -> Judged:
        watch, weights = NonFiniteWatch(), non_finite_weights(cell.model)
        with watch.watching():
            second = again()
        differs = first.own_fault != second.own_fault or not _equal(first.own_losses, second.own_losses)
        rank = parallel_state.get_global_rank()
        own = Findings(rank, watch.origin, watch.carried, weights, second.own_fault, differs)
        found = [Findings.unpacked(text) for text in gathered_texts(own.packed(), parallel_state.get_world_group())]
        found = _with_samples(found, cell.forward_step)
        what = spike or "a result that is no number"
        lines = explained(get_step_position().iteration + 1, what, first.figures, second.figures, found)
        if verdict(first.figures, second.figures) == TRANSIENT:
            if rank == 0:
                warn("\n".join(lines))
            return Judged(second, self._spikes.judge(second.figures) if self._spikes else "")
        if rank == 0 and (spike or not self.checks_finite):
            warn("\n".join(lines))
        return Judged(first, spike, "" if spike else "\n".join(lines))

    def skips(self, judged: Judged) -> bool:
        """Whether the step's update is not made, because its result is a spike and --loss-spike-action is not
        "report"."""
        return bool(judged.spike) and self.config.loss_spike_action != REPORT


def _equal(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Whether both have the same numbers; NaN equals NaN."""
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def _with_samples(found: list[Findings], forward_step: ForwardStep) -> list[Findings]:
    """The findings, the same on all ranks, with the samples of the rows that they name, as the ranks that have those
    rows describe them. All ranks call this."""
    replicas, own = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    places = [place for one in found for place in (one.origin, one.carried) if place is not None]
    known = []
    for place in places:
        micro_batch, replica = divmod(place.micro_batch, replicas)
        said = [forward_step.described(micro_batch, row) for row in place.rows or (0,)] if replica == own else []
        known.append("\x1f".join(filter(None, said)))
    of_ranks = [text.split("\x1e") for text in gathered_texts("\x1e".join(known), parallel_state.get_world_group())]
    samples = [next((texts[i] for texts in of_ranks if texts[i]), "") for i in range(len(places))]
    named = {id(place): tuple(filter(None, text.split("\x1f"))) for place, text in zip(places, samples, strict=True)}

    def filled(place: Place | None) -> Place | None:
        return None if place is None else replace(place, samples=named[id(place)])

    return [replace(one, origin=filled(one.origin), carried=filled(one.carried)) for one in found]
