"""The number of samples of a step: a number, one that grows evenly, or one that changes at given amounts of data.

It is a function of the samples seen, as Megatron has it: --rampup-batch-size ("An Empirical Model of Large-Batch
Training", McCandlish et al., 2018, tells why) and --step-batch-size-schedule.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


class BatchSettings(Protocol):
    """The options of a DatasetConfig that give the global batch size."""

    global_batch_size: int
    rampup_batch_size: list[int] | None
    step_batch_size_schedule: list[list[int]] | None


@dataclass(frozen=True)
class BatchSizes:
    """The global batch size as a function of the samples that were consumed before the step: that of `schedule`, pairs
    (samples consumed, size from then on), if there are any; else that of `ramp` (first size, increment, number of
    samples over which it grows to `final`); without a ramp `final`."""

    final: int
    ramp: tuple[int, int, int] | None = None
    """(first size, increment, number of samples over which it grows to `final`); None: it does not grow evenly. Over 0
    samples it is `final` at once, where Megatron divides by zero."""
    schedule: tuple[tuple[int, int], ...] = ()
    """(samples consumed, size from then on) in order of the samples, the first at 0; empty: no schedule. With one,
    `ramp` does nothing."""

    @classmethod
    def of(cls, settings: BatchSettings, seq_length: int) -> "BatchSizes":
        """The batch sizes of a configuration. seq_length: tokens of a sample, by which the thresholds of
        --step-batch-size-schedule, which are tokens, are divided (rounded down)."""
        start_increment_samples = settings.rampup_batch_size
        ramp = None if start_increment_samples is None else tuple(start_increment_samples)
        pairs = (tuple(pair) for pair in settings.step_batch_size_schedule or ())
        schedule = tuple((*(tokens // seq_length for tokens in pair[:1]), *pair[1:]) for pair in pairs)
        return cls(settings.global_batch_size, ramp, schedule)  # type: ignore[arg-type]

    @property
    def is_sound(self) -> bool:
        """Whether the sizes are possible. A schedule: pairs, whose thresholds rise from 0, with sizes above 0, the last
        one `final`; a ramp beside it is not judged. A ramp alone: three numbers, first size and increment above 0, the
        samples at least 0, and it meets `final` exactly. Without both: True."""
        if self.schedule:
            if not all(len(pair) == 2 and pair[1] > 0 for pair in self.schedule):
                return False
            starts = [start for start, _ in self.schedule]
            rises = starts[0] == 0 and all(one < other for one, other in pairwise(starts))
            return rises and self.schedule[-1][1] == self.final
        if self.ramp is None:
            return True
        start, increment, samples = (*self.ramp, 0, 0, 0)[:3]
        is_whole = len(self.ramp) == 3 and start > 0 and increment > 0 and samples >= 0
        return is_whole and start <= self.final and (self.final - start) % increment == 0

    @property
    def changes(self) -> bool:
        """Whether there is a ramp or a schedule."""
        return self.ramp is not None or bool(self.schedule)

    def at(self, seen: int) -> int:
        """The global batch size of the step that begins after `seen` samples."""
        if self.schedule:
            return next(size for samples, size in reversed(self.schedule) if samples <= seen)
        if self.ramp is None:
            return self.final
        start, increment, samples = self.ramp
        if seen > samples or start == self.final or not samples:
            return self.final
        return start + int(seen / (samples / ((self.final - start) // increment))) * increment

    def sizes(self) -> list[int]:
        """Every global batch size that may occur, once each, in the order in which they first do; steps of many samples
        may skip some."""
        if self.schedule:
            return list(dict.fromkeys(size for _, size in self.schedule))
        start, increment, samples = self.ramp or (self.final, 1, 0)
        return [*(range(start, self.final, increment) if samples else ()), self.final]

    def steps(self, samples: int) -> int:
        """The number of whole steps that `samples` suffice for."""
        taken = steps = 0
        last = self.schedule[-1][0] if self.schedule else self.ramp[2] if self.ramp else -1
        while taken <= last and taken + self.at(taken) <= samples:
            taken, steps = taken + self.at(taken), steps + 1
        return steps if taken <= last else steps + (samples - taken) // self.at(taken)

    def place(self, seen: int, samples: int, drops: bool) -> int:
        """The number of the sample, from 0 in data of `samples` that are read over and over in whole steps, at which
        the step after `seen` samples begins. drops: a step for which a pass has too few samples left begins with the
        next pass; else it is the pass's last."""
        place = taken = 0
        while True:
            size = self.at(taken)
            place = 0 if place + (size if drops else 1) > samples else place
            if taken >= seen:
                return place
            place, taken = place + size, taken + size
