"""The predicted step as a picture: all stages over time, as SVG or as the trace that Chrome and Perfetto open."""

from collections.abc import Iterator
from pathlib import Path

from parallel_core.planner.plan import Plan
from parallel_core.schedules import Backward, Forward, WeightGrad
from parallel_core.schedules import draw as pictures
from parallel_core.system.files import replacing
from parallel_core.trace import Kind, Span, chrome_json

KINDS = {Forward: Kind.FORWARD, Backward: Kind.BACKWARD, WeightGrad: Kind.WEIGHT_GRADIENTS}
AFTER = {"data parallel": Kind.MOVING, "optimizer": Kind.OPTIMIZER}


def draw(plan: Plan, path: Path) -> None:
    """Write the step to a file: .svg or .json."""
    text = _svg(plan) if path.suffix == ".svg" else chrome_json(spans(plan), predicted=True)
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def _svg(plan: Plan) -> str:
    title = f"{plan.step.total:.4g} s on {plan.device.name}, as predicted"
    return pictures.svg(plan.step.timeline, title)


def spans(plan: Plan) -> Iterator[Span]:
    """Of the first rank of each stage: computation and waiting of the micro-batches drawn, then the update."""
    per_stage = plan.config.parallel_config.world_size // len(plan.stages)
    end = float(plan.step.timeline.length)
    for stage, computed in enumerate(plan.step.timeline.spans):
        rank, now = stage * per_stage, 0.0
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
