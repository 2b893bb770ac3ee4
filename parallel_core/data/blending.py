"""Which data set each sample of a blend comes from: Megatron's error-minimising order.

At every step the data set that lags furthest behind its share is taken: the one with the largest
weight * step - samples taken (the step counts as 1 at first), the first of equals. Both functions return the data set
of each sample, int16 [samples], and which of that data set's samples it is, int64 [samples].
"""

from collections.abc import Iterator, Sequence
from operator import sub

import numpy as np
from numpy.typing import NDArray

_STEPS_AT_ONCE = 1 << 14

BlendingIndex = tuple[NDArray[np.int16], NDArray[np.int64]]


def blending_index(weights: Sequence[float], size: int) -> BlendingIndex:
    """The order of `size` samples from data sets with these `weights`, whose sum is 1."""
    return _with_sample_numbers(np.fromiter(_laggards(weights, 0, [0] * len(weights), size), np.int16, count=size))


def exhaustive_blending_index(sizes: Sequence[int]) -> BlendingIndex:
    """The order in which every sample of data sets of these `sizes` is taken once, in proportion to the sizes."""
    total = sum(sizes)
    chosen = np.empty(total, np.int16)
    taken = [0] * len(sizes)
    active = [part for part, size in enumerate(sizes) if size]
    done = 0
    while active:
        # Until the first data set runs out the order is that of a blend of those that are left.
        weights = [sizes[part] / total for part in active]
        steps = _laggards(weights, done, [taken[part] for part in active], total - done)
        done = _take_until_one_is_spent(steps, active, sizes, taken, chosen, done)
        active = [part for part in active if taken[part] < sizes[part]]
    return _with_sample_numbers(chosen)


def _take_until_one_is_spent(
    steps: Iterator[int],
    active: Sequence[int],
    sizes: Sequence[int],
    taken: list[int],
    chosen: NDArray[np.int16],
    done: int,
) -> int:
    for choice in steps:
        part = active[choice]
        chosen[done] = part
        taken[part] += 1
        done += 1
        if taken[part] == sizes[part]:
            break
    return done


def _laggards(weights: Sequence[float], first: int, taken: list[int], number: int) -> Iterator[int]:
    """The data set taken at each of `number` steps from step `first`; `taken` is kept up to date."""
    for begin in range(first, first + number, _STEPS_AT_ONCE):
        steps = np.maximum(np.arange(begin, min(begin + _STEPS_AT_ONCE, first + number), dtype=np.float64), 1.0)
        for shares in np.multiply.outer(steps, np.asarray(weights)).tolist():
            errors = list(map(sub, shares, taken))
            choice = errors.index(max(errors))
            taken[choice] += 1
            yield choice


def _with_sample_numbers(chosen: NDArray[np.int16]) -> BlendingIndex:
    numbers = np.empty(len(chosen), np.int64)
    for part in np.unique(chosen):
        mine = chosen == part
        numbers[mine] = np.arange(np.count_nonzero(mine))
    return chosen, numbers
