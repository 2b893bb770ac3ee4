"""Bubbles as the papers of Qi et al. count them."""

from collections.abc import Sequence

from parallel_core.schedules import Placement
from parallel_core.schedules.actions import Ordered
from parallel_core.schedules.simulate import Times, simulate


def bubble_rate(computes: Sequence[Sequence[Ordered]], times: Times, micro_batches: int, placement: Placement) -> float:
    """The part of a step in which a stage waits; a step is as long as the longest stage from its first forward to its
    last gradient. Of interleaving it is shorter than here by p messages: theirs hides one round."""
    spans = simulate(computes, times, placement).spans
    length = max(float(own[-1].stop - own[0].start) for own in spans)
    length -= placement.stages * times.transfer if placement.chunks > 1 and not placement.folded else 0
    return 1 - micro_batches * (times.forward + times.backward) / length
