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


def peak_kept_bytes(config: AllConfig, stage: int, *, on_device: bool = False) -> int:
    """The most that a stage keeps at once under its schedule: every micro-batch in flight, what parts that are run
    again keep until their backward is through, and in a pipeline a tensor on its way, with virtual stages two.

    What one operator needs while it computes is not counted. on_device: without what is offloaded to host memory.
    """
    model, parallel = config.model_config, config.parallel_config
    chunks, micro_batch = stage_chunks(model, stage), MicroBatch.of(model)
    in_backward = [chunk.bytes_in_backward(micro_batch) for chunk in chunks]
    actions = GENERATORS[parallel.schedule_name](
        parallel.pipeline_model_parallel_size,
        config.dataset_config.micro_batch_num,
        len(chunks),
        parallel.microbatch_group_size_per_virtual_pipeline_stage,
    )[stage]
    last = WeightGrad if any(isinstance(action, WeightGrad) for action in actions) else Backward
    kept, now, peak = kept_bytes(model, stage), 0, 0
    if on_device:
        offloaded = [chunk.offloaded_bytes(micro_batch) for chunk in chunks]
        kept, in_backward = ([a - b for a, b in zip(sizes, offloaded, strict=True)] for sizes in (kept, in_backward))
    on_the_way = _hidden_states(config, micro_batch)
    for action in actions:
        now += kept[action.chunk] * isinstance(action, Forward)
        came = 0 if chunks[action.chunk].loss else on_the_way
        again = in_backward[action.chunk] + came - kept[action.chunk]
        peak = max(peak, now + again * isinstance(action, Backward))
        now -= kept[action.chunk] * isinstance(action, last)
    return peak + on_the_way * (2 if len(chunks) > 1 else 1)


def _hidden_states(config: AllConfig, micro_batch: MicroBatch) -> int:
    """Bytes of what goes from one stage to another; without a pipeline none."""
    is_pipeline = config.parallel_config.pipeline_model_parallel_size > 1
    return micro_batch.tokens_between * config.model_config.hidden_size * micro_batch.residual_item_size * is_pipeline
