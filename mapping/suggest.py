"""`plan --suggest`: the fastest layouts of a job's devices, and the best single changes of the given one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from mapping.reading import read
from parallel_core.config.base import Unjudged
from parallel_core.planner import Plan
from parallel_core.planner.layouts import Layout, all_layouts, layout_of, neighbours, without, without_layout
from parallel_core.planner.search import Bound, Found, WholeModel, search

SHOWN, CHANGES = 5, 3
GIBIBYTE = 2**30


@dataclass(frozen=True)
class Suggestions:
    """The layouts that --suggest finds, the fastest first: `layouts`, up to SHOWN that fit; `changes`, up to
    CHANGES that fit and differ from the given one in one field of `Layout`, or in one and the stage of ZeRO, and are
    faster if the given one fits."""

    layouts: list[Found]
    """Layouts that fit, the fastest first."""
    changes: list[Found]
    """Layouts that fit and differ from the given one in one field of `Layout`, or in one and the stage of ZeRO, and are
    faster unless the given one does not fit; the fastest first."""


def suggest(argv: Sequence[str], plan: Plan) -> Suggestions:
    """The suggestions, at most SHOWN layouts and CHANGES changes, for a plan that was made of these arguments."""
    config, world = plan.config, plan.config.parallel_config.world_size
    base, own = without_layout(argv), layout_of(config)
    candidates = [*all_layouts(config, world)]
    bound = Bound(plan, partial(whole_model, base, plan))
    planned = lru_cache(None)(partial(_planned, tuple(base), world, plan))
    near = search(neighbours(own, candidates), bound, planned, CHANGES)
    better = [found for found in near if found.seconds < plan.step.total or not plan.fits]
    return Suggestions(search(candidates, bound, planned, SHOWN), better)


def whole_model(base: Sequence[str], given: Plan, layout: Layout) -> WholeModel | None:
    """The plan of a layout that has one pipeline stage, on tensor x context x expert ranks, with one micro-batch for
    each replica; None if the flags of the layout do not go together, or a size is not known. base: the script's
    flags without those of a layout; given: the plan of all of the script's flags."""
    world = layout.tensor * layout.context * layout.expert
    samples = ["--global-batch-size", str(layout.micro_batch * layout.expert)]
    made = _planned([*without(base, BATCHES), *samples], world, given, layout)
    return None if made is None else WholeModel(made)


BATCHES = ("--global-batch-size", "--rampup-batch-size", "--step-batch-size-schedule")


def _planned(base: Sequence[str], world: int, given: Plan, layout: Layout) -> Plan | None:
    """The plan of one layout on `world` ranks; None if its flags do not go together. base: the script's other flags;
    given: the plan of the script as it is."""
    vocabulary = ["--padded-vocab-size", str(given.config.model_config.vocab_size)] if given.assumed else []
    reading = read([*base, *layout.flags(), *vocabulary], world_size=world, explains=False)
    if len(reading.findings) > len(given.refused):
        return None
    try:
        made = Plan(reading.config, given.device, beyond=given.beyond)
        return made if made.placement and made.stages else None
    except Unjudged:
        return None


def suggestion_lines(found: Suggestions, given: Plan) -> Iterator[str]:
    """Lines about the suggestions for people: the layouts with flags to paste, then the changes."""
    yield "fastest layouts that fit:" if found.layouts else "no layout of these devices fits"
    for one in found.layouts:
        yield f"  {one.seconds:8.4g} s  {one.memory / GIBIBYTE:6.1f} GiB  {' '.join(one.layout.flags())}"
    if found.changes:
        yield f"single changes of the given layout, {given.step.total:.4g} s:"
    own, memory = layout_of(given.config), given.memory[given.fullest].total
    for one in found.changes:
        what = " and ".join(
            f"{name.replace('_', ' ')} {getattr(own, name)} -> {getattr(one.layout, name)}"
            for name in own.changed(one.layout)
        )
        change = one.seconds / given.step.total - 1
        speed = f"{abs(change):.1%} {'more' if change > 0 else 'less'} time"
        yield f"  {what}: {speed}, {(one.memory - memory) / GIBIBYTE:+.1f} GiB: {' '.join(one.layout.flags())}"
