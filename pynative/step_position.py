"""The position of the pass that is computed (iteration, micro-batch, chunk), which random numbers and pipeline getters
read instead of being given it.

Whoever runs a step sets the iteration, the pipeline the micro-batch and chunk before each forward and backward, so a
backward sees the values of its forward.
"""

from typing import NamedTuple

from pynative.local import Local


class StepPosition(NamedTuple):
    """The forward or backward pass that this process computes: the numbers, from 0 each, of the training iteration, of
    the micro-batch in the global batch over all replicas, and of the stage's chunk."""

    iteration: int = 0
    """Number of the training iteration, 0 in the first; evaluations of the training loop keep that of the last one."""
    micro_batch: int = 0
    """Number of the micro-batch within the global batch, over all data-parallel replicas."""
    chunk: int = 0
    """Virtual pipeline rank: which of the stage's model chunks."""


_position = Local(StepPosition())


def get_step_position() -> StepPosition:
    """The position of the pass that this process computes."""
    return _position.value


def set_step_position(position: StepPosition) -> None:
    """Set the position of the pass that this process computes, which may be an earlier one that is repeated."""
    _position.value = position
