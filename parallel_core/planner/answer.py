"""The answer of `plan --json`: the types of the object that it prints, and functions that make it or parts of it."""

from typing import TypedDict

from parallel_core.planner.failures import Reliability
from parallel_core.planner.plan import Plan
from parallel_core.planner.search import Found


class StageAnswer(TypedDict):
    """Planned memory of one rank of a pipeline stage, in bytes: the peak by part, their sum `total_bytes` and its
    range, and the reserved memory beside it. `peak`: the computation during which the peak occurs, in words."""

    total_bytes: int
    """Bytes that the program allocates at the peak: the sum of `parts`. `low_bytes` and `high_bytes` are its range."""
    low_bytes: int
    high_bytes: int
    reserved_bytes: int
    """Bytes beside `total_bytes`: kept by the runtime, and held by its allocator without use."""
    parts: dict[str, int]
    peak: str
    """The computation during which the peak occurs, in words."""


class MemoryAnswer(TypedDict):
    """The memory of a device, and the planned memory of a rank of each stage, first to last."""

    device_bytes: int
    stages: list[StageAnswer]


class TimeAnswer(TypedDict):
    """Planned time of one training step, in seconds: `total`, its range, the parts that add up to it, and messages
    hidden beside computation, which are in none of these."""

    total: float
    low: float
    high: float
    parts: dict[str, float]
    """Name -> seconds of the parts that add up to `total`."""
    hidden: dict[str, float]
    """Part -> seconds of messages that run beside computation and so are in no part."""


class RunAnswer(TypedDict):
    """The planned time of all training steps of the run, each as long as the planned one: in days, and in hours times
    devices."""

    days: float
    device_hours: float


class LayoutAnswer(TypedDict):
    """One layout of --suggest: the flags that ask for it, seconds of its planned step, bytes that the program allocates
    on a rank of its fullest stage, and whether the layout fits the device."""

    flags: list[str]
    step_seconds: float
    memory_bytes: int
    """Bytes that the program allocates on a rank of the fullest stage."""
    fits: bool


class ReliabilityAnswer(TypedDict):
    """The answer of --mtbf-hours: mean hours between failures of the job, the best time of training between two
    checkpoints in seconds (Daly's estimate, 2006), and the part of the wall time that training keeps then."""

    mean_hours_between_failures: float
    """Mean hours between failures of the job."""
    checkpoint_seconds: float
    """Seconds of training between two checkpoints with which the expected wall time is least, by Daly's estimate."""
    goodput: float
    """The part of the wall time that training keeps: neither saving nor restarting nor lost to a failure."""


class Answer(TypedDict):
    """The object that `plan --json` prints. Figures of speed are those of a step: tokens a second of the whole job,
    TFLOP/s of a device and MFU without recomputed operations, HFU with them; MFU and HFU as parts of the peak.
    `bubble_fraction`: the part of the pipeline's time in which the slowest stage waits for others' computation.
    `traffic`: planned bytes that a rank of the first stage sends in a step, by part of the step's time. `run` is None
    where the number of steps is 0 or not known, `reliability` None and `layouts` empty where they were not asked
    for."""

    fits: bool
    device: str
    world_size: int
    memory: MemoryAnswer
    step_seconds: TimeAnswer
    bubble_fraction: float
    tokens_per_second: float
    mfu: float
    hfu: float
    """Hardware FLOPs utilisation: as `mfu`, with recomputed operations counted."""
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
    """The answer of a plan, without those of --mtbf-hours and --suggest (None, empty)."""
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
    """The answer for one layout of --suggest."""
    return {
        "flags": found.layout.flags(),
        "step_seconds": found.seconds,
        "memory_bytes": round(found.memory),
        "fits": found.plan.fits,
    }


def reliability_answer(found: Reliability) -> ReliabilityAnswer:
    """The answer of --mtbf-hours, from times in seconds."""
    return {
        "mean_hours_between_failures": found.between_failures / 3600,
        "checkpoint_seconds": found.interval,
        "goodput": found.goodput,
    }


def _stages(plan: Plan) -> list[StageAnswer]:
    """The answer for each stage. Parts are rounded to whole bytes first, so that they add up to the total."""
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
