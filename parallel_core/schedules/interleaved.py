"""Interleaved 1F1B over virtual stages (Narayanan et al., "Efficient Large-Scale Language Model Training", 2021).

Micro-batches go through the chunks of a stage in groups: a whole group through chunk 0, then through chunk 1, ...,
then the next group; backwards in the same order with the chunks reversed.
"""

from parallel_core.schedules.actions import Backward, Compute, Forward
from parallel_core.schedules.one_f_one_b import alternate


def interleaved(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """What each stage computes, in order; a group is as many micro-batches as there are stages if not given.

    Stage i first runs 2 (p-1-i) + (chunks-1) x group size forwards (Megatron's warm-up), all of them if there are no
    more: always so on the first stage if the micro-batches are a single group.
    """
    group_size = group_size or stages
    order = virtual_order(micro_batches, chunks, group_size)
    forwards = [Forward(m, chunk) for m, chunk in order]
    backwards = [Backward(m, chunks - 1 - chunk) for m, chunk in order]
    before = (chunks - 1) * group_size
    return [alternate(forwards, backwards, 2 * (stages - 1 - stage) + before) for stage in range(stages)]


def virtual_order(micro_batches: int, chunks: int, group_size: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in the order of the forwards; the last group may be smaller."""
    return [
        (m, chunk)
        for start in range(0, micro_batches, group_size)
        for chunk in range(chunks)
        for m in range(start, min(start + group_size, micro_batches))
    ]
