"""What the schedule of a traced run says of its bubble, with the times that its actions took."""

from collections.abc import Sequence

from parallel_core.config import AllConfig
from parallel_core.schedules import GENERATORS
from parallel_core.schedules.simulate import Times, simulate
from parallel_core.trace.span import Kind, Span

_UNIT = 1e-6


def planned_bubble_share(config: AllConfig, spans: Sequence[Span], micro_batches: int) -> float:
    """Mean over the stages of the part of the pipeline's time in which they do nothing, by `schedules.simulate`; every
    action of a kind takes its mean time of all stages, and transfers take none."""
    parallel = config.parallel_config
    chunks = parallel.virtual_pipeline_model_parallel_size or 1
    group_size = parallel.microbatch_group_size_per_virtual_pipeline_stage
    stages = parallel.pipeline_model_parallel_size
    computes = GENERATORS[parallel.schedule_name](stages, micro_batches, chunks, group_size)
    weight = _mean(spans, Kind.WEIGHT_GRADIENTS, chunks)
    times = Times(_mean(spans, Kind.FORWARD, chunks), _mean(spans, Kind.BACKWARD, chunks) + weight, weight)
    timeline = simulate(computes, times, chunks)
    return 1.0 - float(sum(timeline.work)) / (stages * float(timeline.length))


def _mean(spans: Sequence[Span], kind: Kind, chunks: int) -> int:
    """Of a micro-batch in all chunks of a stage, in whole microseconds, at least one."""
    seconds = [span.seconds for span in spans if span.kind is kind]
    return max(1, round(chunks * sum(seconds) / len(seconds) / _UNIT)) if seconds else 0
