"""`plan schedule`: draw a schedule of equal stages, and say what it costs; `plan --draw` draws that of a model.

python -m mapping plan schedule --schedule zb-h1 --stages 4 --micro-batches 8
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from parallel_core.findings import Finding, Setting
from parallel_core.schedules import draw
from parallel_core.schedules.actions import Placement
from parallel_core.schedules.check import check
from parallel_core.schedules.communicate import communicate
from parallel_core.schedules.folded import CHUNKS
from parallel_core.schedules.generators import FOLDED, GENERATORS, SOME_WHOLE, SPLIT, order
from parallel_core.schedules.limits import Asked, refusals
from parallel_core.schedules.simulate import Timeline, Times, simulate
from parallel_core.system.command_line import command_line, program

MOST_COLUMNS = 500
"""The most columns of a picture that is printed as text."""


def duration(text: str) -> Fraction:
    """A time of the command line ("2", "0.5", "4/3") as a fraction. Raises ValueError for text that is no number."""
    try:
        return Fraction(text)
    except ZeroDivisionError as error:
        raise ValueError(text) from error


_SIZES: dict[str, dict[str, Any]] = {
    "--stages --pipeline-model-parallel-size": {"required": True, "metavar": "P", "help": "stages of the pipeline"},
    "--micro-batches --micro-batch-num": {"required": True, "metavar": "M", "help": "micro-batches of a step"},
    "--chunks --virtual-pipeline-model-parallel-size": {"metavar": "V", "help": "virtual stages"},
    "--group-size --microbatch-group-size-per-virtual-pipeline-stage": {"metavar": "N", "help": "of interleaving"},
}
"""Flags of a size (short, of training) -> further arguments of `add_argument`."""


def parser() -> ArgumentParser:
    """The parser of the command line. Sizes have the names of training's flags, too; times are whole numbers, decimals
    or fractions such as 4/3."""
    command = command_line(__doc__, program("plan schedule"))
    command.add_argument("--schedule", "--pipeline-schedule", required=True, choices=GENERATORS, help="its order")
    for flags, more in _SIZES.items():
        command.add_argument(*flags.split(), type=int, **more)
    command.add_argument("--forward", type=duration, default=Fraction(1), help="time of a stage's forward")
    command.add_argument("--backward", type=duration, default=Fraction(2), help="gradients of input and weights")
    command.add_argument("--weight", type=duration, default=Fraction(1), help="the weights' part of the backward")
    command.add_argument("--transfer", type=duration, default=Fraction(0), help="time on the way to another stage")
    command.add_argument("--svg", type=Path, metavar="FILE", help="write the picture there")
    command.add_argument("--png", type=Path, metavar="FILE", help="the same; needs matplotlib")
    return command


def faults(args: Namespace) -> Iterator[Finding]:
    """Findings about arguments: sizes below 1, times of computations that are not above 0, a transfer below 0,
    and, where a schedule splits them off, weight gradients that take as long as the backward or longer."""
    for name in ("stages", "micro_batches", "chunks", "group_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            yield Finding(f"--{name.replace('_', '-')}", value, "must be at least 1", "raise it")
    for name in ("forward", "backward", "weight"):
        if getattr(args, name) <= 0:
            yield Finding(f"--{name}", getattr(args, name), "must be above 0", "raise it")
    if args.transfer < 0:
        yield Finding("--transfer", args.transfer, "must be at least 0", "raise it")
    if args.schedule in SPLIT and args.weight >= args.backward:
        rule = f"is a part of --backward {args.backward}, so must be below it"
        yield Finding("--weight", args.weight, rule, "lower it")


def misfits(args: Namespace) -> Iterator[Finding]:
    """Findings for sizes that do not fit each other or the schedule (`refusals`)."""
    asked = Asked(
        schedule=Setting("--schedule", args.schedule),
        stages=Setting("--stages", args.stages),
        micro_batches=Setting("--micro-batches", args.micro_batches),
        chunks=Setting("--chunks", args.chunks),
        group_size=Setting("--group-size", args.group_size),
    )
    return refusals(args.schedule, args.stages, args.micro_batches, args.chunks, args.group_size, asked)


def report(args: Namespace, timeline: Timeline, kept: Sequence[int]) -> str:
    """The printed text: the picture, or only its width if that is above MOST_COLUMNS; then time and bubble; then each
    stage's largest number of activations (`kept`)."""
    width = draw.columns(timeline)
    picture = f"(a picture of {width} columns is not printed; write an --svg)\n"
    if width <= MOST_COLUMNS:
        picture = draw.text(timeline)
    share = 100 * float(timeline.bubble_share)
    return (
        f"{picture}\n"
        f"time {timeline.length}, of which a stage works {max(timeline.work)}: "
        f"bubble {timeline.bubble}, {share:.1f} % of the work\n"
        f"most activations kept, stage by stage: {' '.join(map(str, kept))}"
        f"{f' (each of 1/{args.chunks} of a stage)' if args.chunks > 1 else ''}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the schedule's picture and figures, write the files that were asked for, and return 0; exits with 2 and the
    reasons if that cannot be."""
    command = parser()
    args = command.parse_args(arguments)
    if args.chunks is None:
        args.chunks = CHUNKS if args.schedule in FOLDED else 1
    wrong = list(faults(args)) or list(misfits(args))
    if wrong:
        command.error("\n".join(map(str, wrong)))
    times = Times(args.forward, args.backward, args.weight, args.transfer)
    placement = Placement(args.stages, args.chunks, args.schedule in FOLDED)
    computes = order(args.schedule, placement, args.micro_batches, args.group_size, times)
    some_whole = args.schedule in SOME_WHOLE
    kept = check(communicate(computes, placement), args.micro_batches, placement, some_whole=some_whole)
    timeline = simulate(computes, times, placement)
    sys.stdout.write(report(args, timeline, kept))
    title = f"{args.schedule}, {args.stages} stages, {args.micro_batches} micro-batches: bubble {timeline.bubble}"
    try:
        if args.svg:
            args.svg.write_text(draw.svg(timeline, title))
        if args.png:
            draw.png(timeline, title, args.png)
    except (OSError, ValueError) as error:
        command.error(str(error))
    return 0
