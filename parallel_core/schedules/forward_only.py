"""Evaluation: every micro-batch forward, none backward."""

from parallel_core.schedules.actions import Compute, Forward
from parallel_core.schedules.interleaved import virtual_order


def forward_only(
    stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None
) -> list[list[Compute]]:
    """What each stage computes, in order: with virtual stages group by group, as in training."""
    actions: list[Compute] = [
        Forward(m, chunk) for m, chunk in virtual_order(micro_batches, chunks, group_size or stages)
    ]
    return [list(actions) for _ in range(stages)]
