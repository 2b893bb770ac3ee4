"""Evaluation: every micro-batch forward, none backward."""

from parallel_core.schedules.actions import Compute, Forward


def forward_only(stages: int, micro_batches: int) -> list[list[Compute]]:
    """What each stage computes, in order."""
    return [[Forward(m) for m in range(micro_batches)] for _ in range(stages)]
