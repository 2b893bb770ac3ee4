"""GPipe: every forward, then every backward (Huang et al., "GPipe", 2019).

The backwards run in the micro-batches' order, not in the reverse one of the paper: the bubble is the same, and
gradients are then summed in the same order as by every other schedule.
"""

from parallel_core.schedules.actions import Backward, Compute, Forward


def gpipe(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """What each stage computes, in order."""
    assert chunks == 1, f"GPipe has one chunk on a stage, not {chunks}"
    actions: list[Compute] = [Forward(m) for m in range(micro_batches)]
    actions += [Backward(m) for m in range(micro_batches)]
    return [list(actions) for _ in range(stages)]
