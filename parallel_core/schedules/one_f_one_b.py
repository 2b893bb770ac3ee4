"""1F1B: one forward, one backward (Narayanan et al., "PipeDream", 2019; Megatron's schedule without virtual stages).

Stage i of p first runs p-1-i forwards, then alternates, then drains: at most p-i micro-batches are in flight on it.
"""

from parallel_core.schedules.actions import Backward, Compute, Forward


def one_f_one_b(stages: int, micro_batches: int) -> list[list[Compute]]:
    """What each stage computes, in order."""
    return [_stage(stages - 1 - stage, micro_batches) for stage in range(stages)]


def _stage(stages_after: int, micro_batches: int) -> list[Compute]:
    warm_up = min(stages_after, micro_batches)
    actions: list[Compute] = [Forward(m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        actions += [Forward(warm_up + m), Backward(m)]
    return actions + [Backward(m) for m in range(micro_batches - warm_up, micro_batches)]
