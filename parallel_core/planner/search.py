"""The fastest layouts that fit: candidates in the order of a lower bound, until none can be better than those found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappush, heappushpop

from parallel_core.planner.device import Device
from parallel_core.planner.layouts import RECOMPUTE, Layout
from parallel_core.planner.plan import Plan


@dataclass(frozen=True)
class Found:
    """A layout with its plan."""

    layout: Layout
    plan: Plan

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.plan.step.total

    @property
    def memory(self) -> float:
        """Bytes that the fullest stage allocates."""
        return self.plan.memory[self.plan.fullest].total


@dataclass(frozen=True)
class Bound:
    """Seconds below which no layout of a job comes: its products at the rate of large ones, the second forward of what
    is recomputed whole, and the pipeline's bubble."""

    flops: float
    """FLOPs of a step of the whole job."""
    world_size: int
    samples: int
    device: Device
    dtype: str

    def __call__(self, layout: Layout) -> float:
        calibration = self.device.calibration
        share = max(calibration.products, 2 * calibration.attention)
        again = 4 / 3 if layout.recompute == "full" else 1.0
        work = again * self.flops / self.world_size / (self.device.peak(self.dtype) * share)
        replicas = self.world_size // (layout.tensor * layout.context * layout.pipeline)
        micro_batches = self.samples // (replicas * layout.micro_batch)
        return work * (1 + (layout.pipeline - 1) / (micro_batches * layout.virtual))


def _least_first(pair: tuple[float, Layout]) -> tuple[float, int]:
    return pair[0], list(RECOMPUTE).index(pair[1].recompute)


def search(
    layouts: Sequence[Layout], bound: Callable[[Layout], float], plan: Callable[[Layout], Plan | None], count: int
) -> list[Found]:
    """The `count` fastest layouts that fit, the fastest first; the same as of an exhaustive search, if `bound` is one.

    plan: of a layout, none where it is not legal. Where a layout fits, the same one that recomputes more is not looked
    at: it is no faster.
    """
    best: list[tuple[float, int, Found]] = []
    fitting: set[Layout] = set()
    for number, (least, layout) in enumerate(sorted(((bound(one), one) for one in layouts), key=_least_first)):
        if len(best) == count and least >= -best[0][0]:
            break
        bare = replace(layout, recompute="none")
        made = None if bare in fitting else plan(layout)
        if made is None or not made.fits:
            continue
        fitting.add(bare)
        entry = (-made.step.total, number, Found(layout, made))
        if len(best) < count:
            heappush(best, entry)
        else:
            heappushpop(best, entry)
    return [found for _, _, found in sorted(best, key=lambda entry: -entry[0])]
