"""A run's plan beside the run: seconds of a step and bytes of a rank, by part, as predicted and as measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from parallel_core.planner.plan import Plan
from parallel_core.planner.speed import ALL_MESSAGES, MESSAGES, message_part
from parallel_core.topology import KINDS, Topology
from parallel_core.trace import COMPUTING, GRADIENTS, LOSS, PIPELINE, Kind, Span, each_without_the_ones_before

BUBBLE, OTHER, ACTIVATIONS = "bubble", "other", "activations"
PASS_PARTS = ("forward", "backward", Kind.PAIR.value)
TIME_PARTS = (*PASS_PARTS, *ALL_MESSAGES, BUBBLE, "optimizer", "data", OTHER)
MEMORY_PARTS = ("weights", "gradients", "optimizer", ACTIVATIONS)
MILLISECONDS, MEBIBYTE = 1e-3, 2.0**20


class Row(NamedTuple):
    """The figures of one part, in seconds or bytes; `measured` is None for bytes that were not measured."""

    part: str
    predicted: float
    measured: float | None
    """None for bytes that were not measured."""


@dataclass(frozen=True)
class Quantity:
    """A step's time or a rank's memory by part, and the relative error (`error`) within which the plan expects the
    measured sum."""

    rows: tuple[Row, ...]
    error: float

    @property
    def predicted(self) -> float:
        """The sum of the predicted parts."""
        return sum(row.predicted for row in self.rows)

    @property
    def measured(self) -> float | None:
        """The sum of the measured parts; None unless all are measured."""
        return None if any(row.measured is None for row in self.rows) else sum(row.measured or 0.0 for row in self.rows)

    @property
    def is_within(self) -> bool | None:
        """Whether the measured sum lies in the plan's range; None if it was not measured."""
        if self.measured is None:
            return None
        return abs(self.measured - self.predicted) <= self.error * self.predicted


@dataclass(frozen=True)
class Comparison:
    """The plan beside one measured step of one rank, which is of the stage `stage`; `device`: the name of the device of
    the plan; `source`: the source of the device's calibration, in words."""

    step: int
    stage: int
    device: str
    source: str
    """Source of the device's calibration."""
    seconds: Quantity
    memory: Quantity


def compare(plan: Plan, step: int, stage: int, spans: Sequence[Span], held: Mapping[str, float | None]) -> Comparison:
    """The plan beside one measured step of a rank of the pipeline stage `stage`.

    spans: of this rank in this step; all seconds are measured as 0 if none of them is that of the whole step. held:
    name in MEMORY_PARTS -> bytes that the rank allocated, None where not measured. Parts of time whose seconds are 0 in
    both are left out. If forwards ran beside backwards, all forwards and backwards are one part.
    """
    predicted, measured = plan.step.of_stage(stage), measured_seconds(spans, plan.placement.topology)
    if measured.get(Kind.PAIR.value):
        predicted, measured = _passes_together(predicted), _passes_together(measured)
    names = [name for name in TIME_PARTS if predicted.get(name) or measured.get(name)]
    seconds = tuple(Row(name, predicted.get(name, 0.0), measured.get(name, 0.0)) for name in names)
    allocated = predicted_bytes(plan, stage)
    memory = tuple(Row(name, allocated[name], held.get(name)) for name in MEMORY_PARTS)
    device, ranges = plan.device, plan.device.calibration.ranges
    quantities = Quantity(seconds, ranges.time), Quantity(memory, ranges.memory)
    return Comparison(step, stage, device.name, device.calibration.source, *quantities)


def _passes_together(seconds: Mapping[str, float]) -> dict[str, float]:
    """Part -> seconds, forward and backward added up as one part: of a forward beside a backward nobody knows each
    one's seconds."""
    rest = {name: value for name, value in seconds.items() if name not in PASS_PARTS}
    return {Kind.PAIR.value: sum(seconds.get(name, 0.0) for name in PASS_PARTS), **rest}


def predicted_bytes(plan: Plan, stage: int) -> dict[str, float]:
    """Name in MEMORY_PARTS -> predicted bytes of a stage's rank at its peak. Weights, gradients and optimizer states
    count wherever they lie; activations are all other parts on the device."""
    owned, parts = plan.buffers[stage], plan.memory[stage].parts
    transient = sum(size for name, size in parts.items() if name not in MEMORY_PARTS or name == ACTIVATIONS)
    buffers = (owned.parameters, owned.gradients, owned.optimizer_states)
    return {**dict(zip(MEMORY_PARTS, map(float, buffers), strict=False)), ACTIVATIONS: transient}


def measured_seconds(spans: Sequence[Span], topology: Topology) -> dict[str, float]:
    """Name in TIME_PARTS -> seconds of one recorded step on one rank; empty if no span is that of the whole step
    (`Kind.STEP`), the first of which is read. Where spans overlap, the time counts once, for the first of: the bubble,
    messages, data, computations. "optimizer" has the check of all gradients, too; OTHER is the rest of the step.
    topology: the process groups of the run."""
    whole = next((span for span in spans if span.kind is Kind.STEP), None)
    if whole is None:
        return {}
    inside = [span for span in spans if lies_in(span, whole)]
    passes = [span for span in inside if span.kind in PASSES]
    losses = [span for span in inside if span.name == LOSS]
    found: dict[str, list[Span]] = {name: [] for name in (BUBBLE, *ALL_MESSAGES, *NAMED.values(), OTHER)}
    for span in inside:
        if span.kind in (Kind.WAITING, Kind.MOVING):
            in_pass = any(lies_in(span, one) for one in passes)
            is_last = span.kind is Kind.WAITING and any(lies_in(span, loss) for loss in losses)
            found[_part(span, topology, in_pass, is_last)].append(span)
        elif span.kind in COMPUTING | {Kind.DATA}:
            found["optimizer" if span.name == GRADIENTS else NAMED.get(span.kind, OTHER)].append(span)
    found[OTHER].append(whole)
    return dict(zip(found, each_without_the_ones_before(found.values()), strict=True))


def _part(span: Span, topology: Topology, in_pass: bool, is_last: bool) -> str:
    """The part of a step's time to which a message's span belongs.

    in_pass: the span lies in a forward or backward. is_last: it waits in the first message behind the last backward.

    Inside a pass a message is the model's if one of its groups has the same ranks, since equal groups are one, under
    the name of any kind. Between passes it is the bubble: stages send to each other, and the wait in the first message
    behind a stage's last backward is for stages that are not through.
    """
    is_transfer = span.group == PIPELINE or span.name.partition(" ")[0] in ("send", "recv")
    if not in_pass and (is_transfer or (is_last and topology.pipeline_model_parallel_size > 1)):
        return BUBBLE
    if in_pass and (span.group in KINDS or span.group == "world"):
        return _part_inside(topology, span.group, span.rank)
    return message_part(span.group if span.group != PIPELINE else "")


@lru_cache(maxsize=1024)
def _part_inside(topology: Topology, group: str, rank: int) -> str:
    """The part of a step's time to which messages over `rank`'s group of the kind `group` belong inside a pass."""
    ranks = list(range(topology.world_size) if group == "world" else topology.group(group, rank))
    kinds = (*MODEL, *MESSAGES)
    same = (kind for kind in kinds if len(ranks) > 1 and list(topology.group(kind, rank)) == ranks)
    return message_part(next(same, group))


MODEL = ("tp", "cp", "ep")
"""Kinds of groups of model parallelism, with which a group's ranks are compared first, before kinds that are made of
several."""
PASSES = (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT_GRADIENTS, Kind.PAIR)
NAMED = {
    Kind.DATA: "data",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.WEIGHT_GRADIENTS: "backward",
    Kind.PAIR: Kind.PAIR.value,
    Kind.OPTIMIZER: "optimizer",
}


def lies_in(span: Span, other: Span) -> bool:
    """Whether a span begins and ends within another, whose end is taken a microsecond later."""
    return other.start <= span.start and span.stop <= other.stop + 1e-6


def comparison_lines(found: Comparison) -> Iterator[str]:
    """The comparison as a table for the log: ms and MiB, measured and predicted, with the range of the sums."""
    yield f"Measured beside the plan on {found.device} ({found.source}), stage {found.stage}:"
    titled = (
        (f"step {found.step}, ms", found.seconds, MILLISECONDS),
        ("memory of the rank, MiB", found.memory, MEBIBYTE),
    )
    for title, quantity, unit in titled:
        yield _line(title, quantity.measured, quantity.predicted, unit) + _range(quantity, unit)
        yield from (_line(f"  {row.part}", row.measured, row.predicted, unit) for row in quantity.rows)


def _line(name: str, measured: float | None, predicted: float, unit: float) -> str:
    seen = "-" if measured is None else f"{measured / unit:,.1f}"
    return f"  {name:26} measured {seen:>12}   predicted {predicted / unit:>12,.1f}"


def _range(quantity: Quantity, unit: float) -> str:
    low, high = (quantity.predicted * (1 + sign * quantity.error) / unit for sign in (-1, 1))
    verdict = {True: ", within", False: ", outside", None: ""}[quantity.is_within]
    return f" ({low:,.1f} - {high:,.1f}{verdict})"
