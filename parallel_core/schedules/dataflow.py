"""Who needs whose result: the virtual stages of a pipeline, passed forwards and then backwards.

Chunk c of stage s is virtual stage c * p + s of a pipeline of p stages, as in Megatron: the last stage hands chunk c
over to chunk c + 1 of the first.
"""

from parallel_core.schedules.actions import Backward, Compute, Forward, WeightGrad


def consumer(action: Compute, stage: int, stages: int, chunks: int) -> tuple[Compute, int] | None:
    """What needs the result of `action` of `stage`, and the stage that runs it; none where the way ends."""
    return _moved(action, stage, stages, chunks, 1)


def producer(action: Compute, stage: int, stages: int, chunks: int) -> tuple[Compute, int] | None:
    """What makes the input of `action` of `stage`, and the stage that runs it; none where the way starts."""
    return _moved(action, stage, stages, chunks, -1)


def _moved(action: Compute, stage: int, stages: int, chunks: int, along: int) -> tuple[Compute, int] | None:
    if isinstance(action, WeightGrad):
        return None
    peer = stage + (along if isinstance(action, Forward) else -along)
    if 0 <= peer < stages:
        return action, peer
    chunk = action.chunk + (1 if peer == stages else -1)
    if not 0 <= chunk < chunks:
        return None
    return type(action)(action.micro_batch, chunk), peer % stages


def input_of(action: Backward | WeightGrad) -> Compute:
    """What the same stage must have run before."""
    before = Backward if isinstance(action, WeightGrad) else Forward
    return before(action.micro_batch, action.chunk)
