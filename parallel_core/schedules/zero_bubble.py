"""ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): weight gradients fill the bubble, in 1F1B's memory.

A `Backward` gives only the gradient that the stage before waits for. The gradients of the weights wait for no one, so
stage i puts them off: it runs 1F1B and, from its i-th backward on, the weight gradients of the micro-batch i
before. What was put off fills the time in which 1F1B would wait for the pipeline to drain.

An activation is kept until its weight gradient: on stage i for p-i micro-batches between forward and backward, as in
1F1B, and for i more after that. So no stage keeps more than p, what 1F1B keeps on its first stage.
"""

from parallel_core.schedules.actions import Backward, Compute, WeightGrad
from parallel_core.schedules.one_f_one_b import one_f_one_b


def zb_h1(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """What each stage computes, in order."""
    computes = one_f_one_b(stages, micro_batches, chunks, group_size)
    return [_with_weight_gradients(actions, stage, micro_batches) for stage, actions in enumerate(computes)]


def _with_weight_gradients(actions: list[Compute], delay: int, micro_batches: int) -> list[Compute]:
    result: list[Compute] = []
    for action in actions:
        result.append(action)
        if isinstance(action, Backward) and action.micro_batch >= delay:
            result.append(WeightGrad(action.micro_batch - delay))
    return result + [WeightGrad(m) for m in range(max(0, micro_batches - delay), micro_batches)]
