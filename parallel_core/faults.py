"""Values for results that cannot be right: the findings of a rank when a step is computed again, and the conclusion
from them; spikes of loss and gradient norm; ranks that are slow."""

import json
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from parallel_core.numerics.dtypes import Array

FACTOR, SAMPLES = 10.0, 100
"""Megatron's rule of a spike: at least FACTOR times as high as the highest of the first SAMPLES steps."""
RECENT, FEWEST = 100, 20
"""The last RECENT steps give mean and deviation of the loss; with fewer than FEWEST nothing is judged."""
TRANSIENT, REPEATABLE = "transient", "repeatable"


@dataclass(frozen=True)
class Place:
    """The place where a value that is not finite came up: an operator that made it, or that was given it; the pass
    ("forward" or "backward"), the layer or parameter ("": not known), the number of the micro-batch in the global batch
    and the chunk. rows: where a tensor [s, b, ...] of three or more axes has such a value, the indices b, else none;
    samples: the samples and documents of these rows of the micro-batch, of row 0 if there are none, in words."""

    operator: str
    direction: str
    """Pass in which it came up: "forward" or "backward"."""
    layer: str
    micro_batch: int
    """Number of the micro-batch, from 0, in the global batch, over all data-parallel ranks."""
    chunk: int = 0
    rows: tuple[int, ...] = ()
    """Indices b of the values that are not finite in a tensor [s, b, ...] of three or more axes; else none."""
    samples: tuple[str, ...] = ()
    """The samples and documents of these rows, or of row 0 if they are not known, in words."""

    def __str__(self) -> str:
        rows = f", row {', '.join(map(str, self.rows))}" if self.rows else ""
        samples = f" ({'; '.join(self.samples)})" if self.samples else ""
        layer = f" of {self.layer}" if self.layer else ""
        return f"{self.direction} of {self.operator}{layer}, micro-batch {self.micro_batch}{rows}{samples}"


@dataclass(frozen=True)
class Findings:
    """The findings of one rank about values that are not finite, when a step was computed again. origin: the operator
    that made the first one that was found, if its inputs were finite, else None; carried: without an origin the first
    operator found that was given one, else the next operator found after the origin; None: none was found. weights:
    names of the parameters that were found to hold one before the update; gradients: a sentence about those of this
    rank's own gradients, "" if none was found; differs: whether the second computation gave this rank other losses, or
    another such sentence, than the first."""

    rank: int
    origin: Place | None = None
    """The operator that made the first value found that is not finite, if its inputs were finite; else None."""
    carried: Place | None = None
    """Without an origin the first operator found that was given a value that is not finite, else the next operator
    found after the origin; None: none was found."""
    weights: tuple[str, ...] = ()
    """Names of the parameters that were found to hold a value that is not finite before the update."""
    gradients: str = ""
    """A sentence about this rank's own gradients that are not finite, before they were reduced; empty without any."""
    differs: bool = False
    """Whether the second computation gave this rank other losses, or another sentence `gradients`, than the first."""

    def packed(self) -> str:
        """The findings as JSON, to be sent to another rank."""
        return json.dumps(asdict(self))

    @staticmethod
    def unpacked(text: str) -> "Findings":
        """The findings from the text that `packed` gave."""
        values = json.loads(text)
        for name in ("origin", "carried"):
            if values[name] is not None:
                place = values[name]
                values[name] = Place(**place | {"rows": tuple(place["rows"]), "samples": tuple(place["samples"])})
        return Findings(**values | {"weights": tuple(values["weights"])})


class Figures(NamedTuple):
    """The loss and the gradient norm of one computation of a step."""

    loss: float
    gradient_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    def same(self, other: "Figures") -> bool:
        """Whether both figures equal the other's, NaN being equal to NaN."""
        return all(a == b or (a != a and b != b) for a, b in zip(self, other, strict=True))

    def __str__(self) -> str:
        return f"loss {self.loss}, gradient norm {self.gradient_norm}"


def verdict(first: Figures, second: Figures) -> str:
    """The verdict on two computations of a step: "repeatable" if their figures are the same, else "transient", in which
    case the hardware is to be suspected."""
    return REPEATABLE if first.same(second) else TRANSIENT


def explained(iteration: int, what: str, first: Figures, second: Figures, found: Sequence[Findings]) -> list[str]:
    """The lines for the log about a step that was computed twice. If the figures differ: both, and the ranks that found
    a difference. Else: the figures, and from the findings of all ranks `weights` (at most five a rank), or if no rank
    has any, `origin`, or if no rank has that either, `carried`; then `gradients`. what: the reason for computing the
    step again."""
    if verdict(first, second) == TRANSIENT:
        ranks = [one.rank for one in found if one.differs]
        where = f"on rank {', '.join(map(str, ranks))}" if ranks else "on a rank that the figures do not tell"
        return [
            f"iteration {iteration}: {what} ({first}) is transient: computed again, the step gives {second}. Hardware "
            f"{where} is to be suspected; the run goes on with the second result"
        ]
    return [
        f"iteration {iteration}: {what} ({first}) is repeatable: computed again, the step gives the same",
        *_places(found),
    ]


def _places(found: Sequence[Findings]) -> list[str]:
    """Lines about values that are not finite: parameters that held one; without any, operators that made one; without
    these, operators that were given one. Then the sentences about gradients."""
    weights = [
        f"  rank {one.rank}: no number in the weights {', '.join(one.weights[:5])}" for one in found if one.weights
    ]
    origins = [f"  rank {one.rank}: first in the {one.origin}" for one in found if one.origin]
    carried = [f"  rank {one.rank}: first came into the {one.carried}" for one in found if one.carried]
    lines = weights or origins or carried
    return [*lines, *(f"  {one.gradients}" for one in found if one.gradients)]


class Spikes:
    """A detector of losses and gradient norms that are spikes beside those of the steps before.

    Args:
        deviations: a loss is a spike if it lies more than so many standard deviations above the mean of the last 100
            steps (once there are 20); None: this rule is off.
        loss, norm: whether, after the first 100 steps, a loss, a gradient norm is a spike if it is at least 10 times
            the highest of these steps (Megatron's rule), if that is above 0.

    Steps that are spikes or not finite are not among those steps.
    """

    def __init__(self, deviations: float | None, loss: bool, norm: bool) -> None:
        self.deviations = deviations
        self._checks = {"loss": loss, "gradient norm": norm}
        self._highest = {"loss": (0, 0.0), "gradient norm": (0, 0.0)}
        self._recent: deque[float] = deque(maxlen=RECENT)

    def judge(self, figures: Figures) -> str:
        """The reason why a step's figures are a spike, "" if they are none or not finite. Figures that are finite and
        no spike are added to those that later steps are compared with."""
        if not figures.is_finite:
            return ""
        said = self._by_deviation(figures.loss) or self._by_factor(figures)
        if not said:
            self._recent.append(figures.loss)
            for (name, (count, highest)), value in zip(self._highest.items(), figures, strict=True):
                if count < SAMPLES:
                    self._highest[name] = count + 1, max(highest, value)
        return said

    def _by_deviation(self, loss: float) -> str:
        if self.deviations is None or len(self._recent) < FEWEST:
            return ""
        mean = sum(self._recent) / len(self._recent)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in self._recent) / len(self._recent))
        above = (loss - mean) / deviation if deviation else math.inf if loss > mean else 0.0
        return (
            f"a loss spike: {above:.1f} standard deviations above the last steps' mean"
            if above > self.deviations
            else ""
        )

    def _by_factor(self, figures: Figures) -> str:
        for (name, (count, highest)), value in zip(self._highest.items(), figures, strict=True):
            if self._checks[name] and count >= SAMPLES and value >= FACTOR * highest > 0:
                return f"a spike: a {name} {value / highest:.1f} times as high as any of the first {SAMPLES} steps"
        return ""


SLOW = 1.2
"""A rank is slow in a part that takes it more than this multiple of the median of ranks with the same work."""
SMALLEST_SHARE = 0.02
"""Share of a step's time; a rank that is slower by less than this is not named."""


def stragglers(names: Sequence[str], seconds: Array, alike: Collection[Collection[int]], step: float) -> list[str]:
    """A sentence for each rank and part of a step in which it is slow: it takes longer than the median of the ranks
    with the same work (of an even number the upper one; of two ranks: the faster), by more than 20% of that and more
    than 2% of the step.

    names: of the parts; seconds: [ranks, parts], without waiting; alike: groups of ranks with the same work, one rank
    alone is never slow; step: seconds of a step.
    """
    found = []
    for ranks in map(list, alike):
        for column, name in enumerate(names):
            own = sorted(float(seconds[rank, column]) for rank in ranks)
            usual = own[len(own) // 2] if len(own) > 2 else own[0]
            for rank in ranks:
                more = float(seconds[rank, column]) - usual
                if len(ranks) > 1 and more > (SLOW - 1) * usual and more > SMALLEST_SHARE * step:
                    found.append(
                        f"rank {rank} is slow in {name}: {seconds[rank, column] * 1e3:.1f} ms a step, where ranks with "
                        f"the same work take {usual * 1e3:.1f} ms"
                    )
    return found
