"""Flat buffers as a plan: where parameters and gradients lie, what an update sweeps, what moves over which group.

Parameters of one type whose gradients have one type and are summed over one group share a buffer, so that one
collective reduces a bucket and one sweep updates a segment. Offsets are elements; a buffer of gradients has the same
ones as its buffer of parameters. What a rank owns - all of a buffer, or with the distributed optimizer its part of
every bucket - is spans of these offsets.
"""

from parallel_core.buffers.collectives import (
    Collective,
    bucket_reductions,
    other_sums,
    plan_gathers,
    plan_reductions,
)
from parallel_core.buffers.layout import (
    ALIGNMENT,
    BucketRule,
    BufferPlan,
    Entry,
    Segment,
    Span,
    aligned,
    offloaded,
    overlaps,
    plan_buffers,
)
from parallel_core.buffers.slots import Cell, Residence, SlotPlan, Visits, gathered, micro_batch_visits, plan_residence
from parallel_core.buffers.stretch import Stretch

__all__ = [
    "ALIGNMENT",
    "BucketRule",
    "BufferPlan",
    "Cell",
    "Collective",
    "Entry",
    "Residence",
    "Segment",
    "SlotPlan",
    "Span",
    "Stretch",
    "Visits",
    "aligned",
    "bucket_reductions",
    "gathered",
    "micro_batch_visits",
    "offloaded",
    "other_sums",
    "overlaps",
    "plan_buffers",
    "plan_gathers",
    "plan_reductions",
    "plan_residence",
]
