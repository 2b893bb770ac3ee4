"""The time of a schedule whose stages share processors: the speed of each depends on how many compute at once."""

from collections.abc import Sequence
from typing import Protocol

from parallel_core.schedules.actions import Ordered, Pair, Placement, of_entry
from parallel_core.schedules.simulate import Durations, Play, TimedAction, Timeline


class Cores(Protocol):
    """Processor cores that a pipeline's stages share."""

    def pace(self, stages: int) -> float:
        """The part of its own speed that a stage has while `stages` stages compute, itself among them: below 1 where
        cores are too few, above 1 where a stage beside idle ones is faster."""

    def waking(self, idle: float) -> float:
        """Time, at a stage's own speed, by which its next entry takes longer after it has waited for a time `idle`."""


def simulate_shared(
    entries: Sequence[Sequence[Ordered]], times: Durations, placement: Placement, cores: Cores
) -> Timeline:
    """Run each stage's list in order, as `simulate` does, by a clock that all stages share: the durations are those of
    a stage at its own speed, and all that compute at a moment have the same part of it; an entry for which a stage has
    waited takes longer (`Cores.waking`).

    Raises AssertionError if stages wait for each other for ever.
    """
    play = _SharedPlay(entries, times, placement, cores)
    now = 0.0
    while (after := play.go_on(now)) is not None:
        now = after
    play.check_ended()
    return Timeline(play.spans)


class _SharedPlay(Play):
    """The state of a simulation of stages that share processors, at one moment of the clock that all of them share."""

    def __init__(
        self, entries: Sequence[Sequence[Ordered]], times: Durations, placement: Placement, cores: Cores
    ) -> None:
        super().__init__(entries, times, placement)
        self._cores = cores
        self._left: dict[int, float] = {}
        """Stage that computes -> seconds at its own speed that its entry still takes."""
        self._whole = [0.0] * len(entries)
        """For each stage the seconds at its own speed that its last entry takes from beginning to end."""
        self._started, self._ended = [0.0] * len(entries), [0.0] * len(entries)
        """For each stage the last start and the last end of an entry, 0 before its first."""

    def go_on(self, now: float) -> float | None:
        """Begin the entries that can begin at `now`, and compute until one ends or the input of another arrives; the
        time of that, None if nothing can happen any more."""
        arrivals = self._begin(now)
        if not self._left:
            return min(arrivals, default=None)
        part = self._cores.pace(len(self._left))
        until = min([now + min(self._left.values()) / part, *arrivals])
        for stage in list(self._left):
            self._left[stage] -= (until - now) * part
            if self._left[stage] <= 1e-9 * self._whole[stage]:
                del self._left[stage]
                self._end(stage, until)
        return until

    def _begin(self, now: float) -> list[float]:
        """Begin the next entry of each idle stage if its inputs are there at `now`; the later times at which known
        inputs of the others arrive."""
        later = []
        for stage, entries in enumerate(self._entries):
            if stage in self._left or self.done[stage] == len(entries):
                continue
            arrivals = [self._arrival(stage, action) for action in of_entry(entries[self.done[stage]])]
            known = [float(arrival) for arrival in arrivals if arrival is not None]
            if len(known) < len(arrivals):
                continue
            if max(known) <= now:
                self._left[stage] = self._whole[stage] = self._duration(stage, now - self._ended[stage])
                self._started[stage] = now
            else:
                later.append(max(known))
        return later

    def _parts(self, stage: int) -> list[float]:
        """Seconds, at the stage's own speed, of each computation of its next entry; a pair's saving is taken off the
        backward."""
        entry, chunks = self._entries[stage][self.done[stage]], self._placement.chunks
        parts = [float(self._times.of(one, stage, chunks, one in self._split[stage])) for one in of_entry(entry)]
        if isinstance(entry, Pair):
            parts[-1] -= float(self._times.saved(entry, stage, chunks))
        return parts

    def _duration(self, stage: int, idle: float) -> float:
        """Seconds, at the stage's own speed, of its next entry after it has waited for `idle`; an entry without work
        takes none."""
        own = sum(self._parts(stage))
        return own + self._cores.waking(idle) if own else 0.0

    def _end(self, stage: int, now: float) -> None:
        start, parts, computes = (
            self._started[stage],
            self._parts(stage),
            of_entry(self._entries[stage][self.done[stage]]),
        )
        stretched = (now - start) / sum(parts) if sum(parts) else 0.0
        for action, seconds in zip(computes, parts, strict=True):
            self.spans[stage].append(TimedAction(action, start, start + seconds * stretched))
            start += seconds * stretched
        self._made[stage].update(dict.fromkeys(computes, now))
        self._ended[stage] = now
        self.done[stage] += 1
