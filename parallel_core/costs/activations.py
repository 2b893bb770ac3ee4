"""Bytes of activations that a rank keeps between a micro-batch's forward and its backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.blocks import MicroBatch, stage_chunks
from parallel_core.schedules import GENERATORS, Backward, Forward, WeightGrad

if TYPE_CHECKING:
    from parallel_core.config import AllConfig, ModelConfig


def kept_bytes(config: ModelConfig, stage: int) -> list[int]:
    """Of one micro-batch, for each of a stage's chunks; how many are in flight is the schedule's."""
    micro_batch = MicroBatch.of(config)
    return [sum(chunk.kept_bytes(micro_batch).values()) for chunk in stage_chunks(config, stage)]


def peak_kept_bytes(config: AllConfig, stage: int) -> int:
    """The most that a stage keeps at once under its schedule: every micro-batch in flight, and what layers that are run
    again keep until their backward is through. What one operator needs while it computes is not counted."""
    model, parallel = config.model_config, config.parallel_config
    chunks, micro_batch = stage_chunks(model, stage), MicroBatch.of(model)
    again = [chunk.decoder.layers.bytes_run_again(micro_batch) for chunk in chunks]
    actions = GENERATORS[parallel.schedule_name](
        parallel.pipeline_model_parallel_size,
        config.dataset_config.micro_batch_num,
        len(chunks),
        parallel.microbatch_group_size_per_virtual_pipeline_stage,
    )[stage]
    last = WeightGrad if any(isinstance(action, WeightGrad) for action in actions) else Backward
    kept, now, peak = kept_bytes(model, stage), 0, 0
    for action in actions:
        now += kept[action.chunk] * isinstance(action, Forward)
        peak = max(peak, now + again[action.chunk] * isinstance(action, Backward))
        now -= kept[action.chunk] * isinstance(action, last)
    return peak
