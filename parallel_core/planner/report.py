"""A plan as text: the verdict first, then tables; and as pictures."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from parallel_core.planner.memory import StageMemory
from parallel_core.planner.pictures import memory_svg, ranks_svg
from parallel_core.planner.plan import Plan
from parallel_core.schedules import Backward, Forward, WeightGrad
from parallel_core.schedules import draw as pictures
from parallel_core.system.files import replacing
from parallel_core.trace import Kind, Span, chrome_json

GIBIBYTE = 2**30
UNITS = {"GiB": (2**30, 2), "MiB": (2**20, 1)}
"""Name of a unit -> its bytes, and the digits behind the point that are printed."""


def lines(plan: Plan) -> Iterator[str]:
    """The plan as printed: verdict, memory, time of a step, warnings, assumptions."""
    yield verdict(plan)
    yield ""
    yield from memory_lines(plan.memory)
    yield ""
    yield from _step(plan)
    for title, found in (("warnings", plan.warnings), ("assumptions", plan.assumptions)):
        if found:
            yield ""
            yield f"{title}:"
            yield from (f"  {line}" for line in found)


def verdict(plan: Plan) -> str:
    """A line that says whether the fullest stage fits its device's memory, its bytes with their range, those reserved,
    and when the peak is."""
    stage = plan.memory[plan.fullest]
    words = "fits" if plan.fits else "does not fit"
    return (
        f"{words} {_gib(plan.device.memory_bytes)} of {plan.device.name}: "
        f"{_gib(stage.total)} +- {_gib(stage.high - stage.total)} and {_gib(stage.reserved)} reserved, in {stage.when}"
    )


def memory_lines(stages: Sequence[StageMemory], unit: str = "GiB") -> Iterator[str]:
    """The lines of a table with each stage's memory by part, its title first; neighbouring stages that need nearly the
    same share a line, with the figures of the first. unit: MiB or GiB."""
    size, digits = UNITS[unit]
    yield f"memory of a rank, in {unit}:"
    names = [*dict.fromkeys(name for stage in stages for name in _sizes(stage) if _sizes(stage)[name])]
    yield "  " + "".join([f"{'stages':10}", *(f"{name:>{len(name) + 3}}" for name in names), f"{'total':>10}   range"])

    def rounded(stage: StageMemory) -> tuple[float, ...]:
        return tuple(round(_sizes(stage).get(name, 0.0) / size, digits + 1) for name in names)

    for _, run in groupby(enumerate(stages), key=lambda numbered: rounded(numbered[1])):
        numbered = list(run)
        first, last, stage = numbered[0][0], numbered[-1][0], numbered[0][1]
        label = str(first) if first == last else f"{first} - {last}"
        cells = (f"{_sizes(stage).get(name, 0.0) / size:>{len(name) + 3},.{digits}f}" for name in names)
        total, low, high = (f"{number / size:,.{digits}f}" for number in (stage.total, stage.low, stage.high))
        yield "  " + "".join([f"{label:10}", *cells, f"{total:>10}   {low} - {high}"])


def _sizes(stage: StageMemory) -> dict[str, float]:
    """Name -> bytes of the parts of a stage's memory, and of those that lie in host memory."""
    return stage.parts | {f"{name} in host memory": size for name, size in stage.elsewhere.items()}


ROUNDING = 1e-9
"""The part of a step below which a difference of sums is rounding."""


def _step(plan: Plan) -> Iterator[str]:
    step, low, high = plan.step, plan.step.low, plan.step.high
    yield f"a step takes {step.total:.4g} s ({low:.4g} - {high:.4g}), stage {step.slowest} being the slowest:"
    for name, seconds in sorted(step.parts.items(), key=lambda part: -part[1]):
        if seconds > ROUNDING * step.total:
            yield f"  {name:18} {seconds:10.4g} s  {seconds / step.total:6.1%}"
    for name, seconds in step.hidden.items():
        if seconds:
            yield f"  {name:18} {seconds:10.4g} s  hidden beside computation"
    spread, tflops = step.error, plan.flops_per_device / 1e12
    yield f"  {plan.tokens_per_second:,.0f} tokens/s +- {spread:.0%}, {tflops:,.1f} TFLOP/s a device"
    yield f"  MFU {plan.mfu:.1%}, of all that is computed {plan.hfu:.1%}; bubble {step.bubble_fraction:.1%}"
    days, world = plan.days, plan.config.parallel_config.world_size
    if days is not None:
        steps = plan.config.training_config.training_iters
        yield f"  {steps:,} steps: {_long(days)} +- {spread:.0%}, {days * 24 * world:,.1f} device-hours"


def _long(days: float) -> str:
    """A time as text, in days, else hours, else minutes: the largest unit of which it has one."""
    units = (days, "days"), (days * 24, "hours"), (days * 24 * 60, "minutes")
    value, unit = next((one for one in units if one[0] >= 1), units[-1])
    return f"{value:,.2f} {unit}"


def _gib(number: float) -> str:
    return f"{number / GIBIBYTE:,.1f} GiB"


KINDS = {Forward: Kind.FORWARD, Backward: Kind.BACKWARD, WeightGrad: Kind.WEIGHT_GRADIENTS}
AFTER = {"data parallel": Kind.MOVING, "optimizer": Kind.OPTIMIZER}


def draw(plan: Plan, path: Path, subject: str = "step") -> None:
    """Write a picture of the plan to `path`, in place of any file there. subject: "step" (a trace if `path` ends in
    .json, else SVG), "memory" or "ranks" (SVG)."""
    is_trace = subject == "step" and path.suffix == ".json"
    text = chrome_json(spans(plan), predicted=True) if is_trace else PICTURES[subject](plan)
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def step_svg(plan: Plan) -> str:
    """The timeline of all stages' computations as the text of an SVG document; it may have fewer micro-batches than a
    step."""
    return pictures.svg(plan.step.timeline, f"{plan.step.total:.4g} s on {plan.device.name}, as predicted")


PICTURES = {"step": step_svg, "memory": memory_svg, "ranks": ranks_svg}


def spans(plan: Plan) -> Iterator[Span]:
    """The spans of a trace for the first rank of each stage: the computations of the timeline, which may have
    fewer micro-batches than a step, and the waits before, between and after them, then the step's exposed data-parallel
    messages and update."""
    firsts = plan.placement.topology.group("pp", 0)
    end = float(plan.step.timeline.length)
    for stage, computed in enumerate(plan.step.timeline.spans):
        rank, now = int(firsts[stage]), 0.0
        for span in computed:
            start, stop, action = float(span.start), float(span.stop), span.action
            if start > now:
                yield Span(rank, Kind.WAITING, "bubble", now, start - now, 1)
            name = f"{pictures.LOOKS[type(action)].name} {action.micro_batch}.{action.chunk}"
            yield Span(rank, KINDS[type(action)], name, start, stop - start, 1)
            now = stop
        if end > now:
            yield Span(rank, Kind.WAITING, "bubble", now, end - now, 1)
        later = end
        for name, kind in AFTER.items():
            seconds = plan.step.parts.get(name, 0.0)
            yield Span(rank, kind, name, later, seconds, 1)
            later += seconds
