"""Pictures of a timeline: text, SVG, and PNG where matplotlib is installed."""

from collections.abc import Iterator
from fractions import Fraction
from html import escape
from math import gcd, lcm
from typing import NamedTuple

from parallel_core.schedules.actions import Backward, Compute, Forward, WeightGrad
from parallel_core.schedules.simulate import TimedAction, Timeline


class Look(NamedTuple):
    """The letter, colour and name by which a kind of computation is drawn."""

    letter: str
    colour: str
    name: str


LOOKS: dict[type, Look] = {
    Forward: Look("F", "#8ab6e8", "forward"),
    Backward: Look("B", "#8fce9a", "backward"),
    WeightGrad: Look("W", "#f2c879", "gradients of weights"),
}


def label(action: Compute, chunks: int) -> str:
    """The label of a computation: `F3` is the forward of micro-batch 3, `F3.1` the one through chunk 1 where a stage
    has several chunks."""
    return f"{LOOKS[type(action)].letter}{_number(action, chunks)}"


def _number(action: Compute, chunks: int) -> str:
    return f"{action.micro_batch}.{action.chunk}" if chunks > 1 else f"{action.micro_batch}"


def _chunks(timeline: Timeline) -> int:
    return 1 + max((span.action.chunk for spans in timeline.spans for span in spans), default=0)


def _all_spans(timeline: Timeline) -> Iterator[tuple[int, TimedAction]]:
    return ((stage, span) for stage, spans in enumerate(timeline.spans) for span in spans)


def _tick(timeline: Timeline) -> Fraction:
    """The longest time of which every start and stop of the timeline is a multiple: the time of a column."""
    times = [Fraction(time) for _, span in _all_spans(timeline) for time in (span.start, span.stop)]
    common = lcm(*(time.denominator for time in times))
    return Fraction(gcd(*(int(time * common) for time in times)) or common, common)


def _label_width(timeline: Timeline) -> int:
    chunks = _chunks(timeline)
    return 1 + max((len(label(span.action, chunks)) for _, span in _all_spans(timeline)), default=1)


def columns(timeline: Timeline) -> int:
    """The number of characters that a row of `text` has for ticks, with the blanks that are cut at its end."""
    return int(timeline.length / _tick(timeline)) * _label_width(timeline)


def text(timeline: Timeline) -> str:
    """The timeline as text: a row for each stage, and in it columns of equal width for ticks, the longest time of which
    every start and stop is a multiple. A computation is its label and dashes for as long as it takes, an idle tick a
    dot; a computation that takes no time is left out."""
    tick, chunks, width = _tick(timeline), _chunks(timeline), _label_width(timeline)
    stage_width = len(str(len(timeline.spans) - 1))
    rows = []
    for stage, spans in enumerate(timeline.spans):
        row, now = "", 0
        for span in spans:
            start, stop = int(span.start / tick), int(span.stop / tick)
            row += ".".ljust(width) * (start - now)
            row += (label(span.action, chunks).ljust((stop - start) * width - 1, "-") + " ") * (stop > start)
            now = stop
        row += ".".ljust(width) * (int(timeline.length / tick) - now)
        rows.append(f"stage {stage:<{stage_width}}  {row.rstrip()}\n")
    return "".join(rows)


BOX, ROW, LEFT, TOP = 26, 30, 70, 40
"""Pixels: width of the shortest computation that takes time, height of a row, margins of the chart."""


def svg(timeline: Timeline, title: str) -> str:
    """The timeline as the text of an SVG document; the chunks of a stage in lighter and lighter shades. title: plain
    text, which is escaped here."""
    chunks = _chunks(timeline)
    times = (span.stop - span.start for _, span in _all_spans(timeline))
    scale = BOX / float(min((time for time in times if time), default=1))
    length = scale * float(timeline.length)
    width, height = LEFT + length + 20, TOP + ROW * len(timeline.spans) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="14">{escape(title)}</text>',
    ]
    for stage in range(len(timeline.spans)):
        y = TOP + ROW * stage
        lines.append(f'<text x="8" y="{y + 19}">stage {stage}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{length:g}" height="26" fill="#eeeeee"/>')
    lines += [_box(stage, span, chunks, scale) for stage, span in _all_spans(timeline)]
    lines += _legend(timeline, height - 16)
    return "\n".join([*lines, "</svg>", ""])


def _box(stage: int, span: TimedAction, chunks: int, scale: float) -> str:
    x, y = LEFT + scale * float(span.start), TOP + ROW * stage
    width = scale * float(span.stop - span.start)
    look = LOOKS[type(span.action)]
    return (
        f"<g><title>{look.name} of micro-batch {span.action.micro_batch}, chunk {span.action.chunk}: "
        f"{span.start} to {span.stop}</title>"
        f'<rect x="{x:g}" y="{y}" width="{width:g}" height="26" fill="{look.colour}" '
        f'fill-opacity="{opacity(span.action, chunks):g}" stroke="#555555"/>'
        f'<text x="{x + width / 2:g}" y="{y + 18}" text-anchor="middle">{_number(span.action, chunks)}</text></g>'
    )


def opacity(action: Compute, chunks: int) -> float:
    """The opacity of a computation's box: 1 for chunk 0, less for each later one."""
    return 1 - 0.7 * action.chunk / chunks


def _kinds(timeline: Timeline) -> list[Look]:
    used = {type(span.action) for _, span in _all_spans(timeline)}
    return [look for kind, look in LOOKS.items() if kind in used]


def _legend(timeline: Timeline, y: float) -> Iterator[str]:
    for place, look in enumerate(_kinds(timeline)):
        x = LEFT + 110 * place
        yield f'<rect x="{x}" y="{y - 10:g}" width="12" height="12" fill="{look.colour}" stroke="#555555"/>'
        yield f'<text x="{x + 18}" y="{y:g}">{look.name}</text>'


def png(timeline: Timeline, title: str, path: str) -> None:
    """Write the timeline to `path` with matplotlib: as PNG, unless the name has the ending of another format; a name
    without an ending gets .png. Raises ValueError if matplotlib is not installed or does not know the ending, OSError
    if the file cannot be written."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ValueError("--png: needs matplotlib; pip install matplotlib, or write an --svg") from error
    chunks = _chunks(timeline)
    figure = Figure(figsize=(2 + float(timeline.length / _tick(timeline)) / 3, 1.5 + len(timeline.spans) / 2))
    axes = figure.add_subplot(title=title, xlim=(0, float(timeline.length)))
    for stage, span in _all_spans(timeline):
        start, length, look = float(span.start), float(span.stop - span.start), LOOKS[type(span.action)]
        alpha = opacity(span.action, chunks)
        axes.barh(stage, length, 0.9, start, color=look.colour, alpha=alpha, edgecolor="#555555")
        axes.text(start + length / 2, stage, _number(span.action, chunks), ha="center", va="center", fontsize=8)
    axes.set_yticks(range(len(timeline.spans)), [f"stage {stage}" for stage in range(len(timeline.spans))])
    axes.invert_yaxis()
    legend = [Patch(color=look.colour, label=look.name) for look in _kinds(timeline)]
    figure.legend(handles=legend, ncols=len(legend), loc="upper center", bbox_to_anchor=(0.5, 0))
    figure.savefig(path, bbox_inches="tight")
