"""1F1B: one forward, one backward (Narayanan et al., "PipeDream", 2019; Megatron's schedule without virtual stages).

Stage i of p first runs p-1-i forwards, then alternates, then drains: at most p-i micro-batches are in flight on it.
"""

from collections.abc import Sequence
from itertools import chain

from parallel_core.schedules.actions import Backward, Compute, Forward


def one_f_one_b(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """What each stage computes, in order."""
    assert chunks == 1, f"1F1B has one chunk on a stage, not {chunks}: use interleaved"
    forwards = [Forward(m) for m in range(micro_batches)]
    backwards = [Backward(m) for m in range(micro_batches)]
    return [alternate(forwards, backwards, stages - 1 - stage) for stage in range(stages)]


def alternate(forwards: Sequence[Compute], backwards: Sequence[Compute], warm_up: int) -> list[Compute]:
    """`warm_up` forwards, then one forward and one backward at a time, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    steady = zip(forwards[warm_up:], backwards, strict=False)
    left = backwards[len(forwards) - warm_up :]
    return [*forwards[:warm_up], *chain.from_iterable(steady), *left]
