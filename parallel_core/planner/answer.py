"""A plan for programs: the one object that `plan --json` prints. These classes are its schema."""

from typing import TypedDict

from parallel_core.planner.failures import Reliability
from parallel_core.planner.plan import Plan
from parallel_core.planner.search import Found


class StageAnswer(TypedDict):
    """Memory of a rank of one stage, in bytes."""

    total_bytes: int
    """Bytes that the program allocates: the sum of `parts`."""
    low_bytes: int
    high_bytes: int
    reserved_bytes: int
    """Bytes beside that: kept by the runtime, and held by its allocator."""
    parts: dict[str, int]
    peak: str
    """The moment of the peak."""


class MemoryAnswer(TypedDict):
    """Memory of all stages."""

    device_bytes: int
    stages: list[StageAnswer]


class TimeAnswer(TypedDict):
    """Time of one step, in seconds."""

    total: float
    low: float
    high: float
    parts: dict[str, float]
    """Parts that add up to `total`."""
    hidden: dict[str, float]
    """Messages that run beside computation, in no part."""


class RunAnswer(TypedDict):
    """The run of --train-iters steps; with --mtbf-hours the cost of failures."""

    days: float
    device_hours: float


class LayoutAnswer(TypedDict):
    """One layout of --suggest."""

    flags: list[str]
    step_seconds: float
    memory_bytes: int
    """Bytes of the fullest stage."""
    fits: bool


class ReliabilityAnswer(TypedDict):
    """The answer of --mtbf-hours: failures of devices, and checkpoints against them."""

    mean_hours_between_failures: float
    """Mean hours between failures of the job."""
    checkpoint_seconds: float
    """The best interval between two."""
    goodput: float
    """The part of the time that brings training on."""


class Answer(TypedDict):
    """The whole answer."""

    fits: bool
    device: str
    world_size: int
    memory: MemoryAnswer
    step_seconds: TimeAnswer
    bubble_fraction: float
    tokens_per_second: float
    mfu: float
    hfu: float
    """The share as `mfu`, but of everything that is computed."""
    tflops_per_device: float
    traffic: dict[str, int]
    """Bytes that a rank of the first stage sends in a step, by part of the step's time."""
    run: RunAnswer | None
    warnings: list[str]
    assumptions: list[str]
    reliability: ReliabilityAnswer | None
    layouts: list[LayoutAnswer]
    """Layouts of --suggest, the fastest first."""


def answer(plan: Plan) -> Answer:
    """All that a plan says."""
    days, world = plan.days, plan.config.parallel_config.world_size
    return {
        "fits": plan.fits,
        "device": plan.device.name,
        "world_size": world,
        "memory": {"device_bytes": int(plan.device.memory_bytes), "stages": _stages(plan)},
        "step_seconds": {
            "total": plan.step.total,
            "low": plan.step.low,
            "high": plan.step.high,
            "parts": dict(plan.step.parts),
            "hidden": dict(plan.step.hidden),
        },
        "bubble_fraction": plan.step.bubble_fraction,
        "tokens_per_second": plan.tokens_per_second,
        "mfu": plan.mfu,
        "hfu": plan.hfu,
        "tflops_per_device": plan.flops_per_device / 1e12,
        "traffic": {name: int(size) for name, size in plan.traffic.items()},
        "run": None if days is None else {"days": days, "device_hours": days * 24 * world},
        "warnings": plan.warnings,
        "assumptions": plan.assumptions,
        "reliability": None,
        "layouts": [],
    }


def layout_answer(found: Found) -> LayoutAnswer:
    """One suggestion."""
    return {
        "flags": found.layout.flags(),
        "step_seconds": found.seconds,
        "memory_bytes": round(found.memory),
        "fits": found.plan.fits,
    }


def reliability_answer(found: Reliability) -> ReliabilityAnswer:
    """Failures and checkpoints."""
    return {
        "mean_hours_between_failures": found.between_failures / 3600,
        "checkpoint_seconds": found.interval,
        "goodput": found.goodput,
    }


def _stages(plan: Plan) -> list[StageAnswer]:
    """Whole bytes, whose parts add up."""
    found: list[StageAnswer] = []
    for stage in plan.memory:
        parts = {name: round(size) for name, size in stage.parts.items()}
        found.append(
            {
                "total_bytes": sum(parts.values()),
                "low_bytes": round(stage.low),
                "high_bytes": round(stage.high),
                "reserved_bytes": round(stage.reserved),
                "parts": parts,
                "peak": stage.when,
            }
        )
    return found
