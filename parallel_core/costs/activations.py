"""Bytes of activations that a rank keeps between a micro-batch's forward and its backward."""

from parallel_core.blocks import MicroBatch, stage_chunks
from parallel_core.config import ModelConfig


def kept_bytes(config: ModelConfig, stage: int) -> list[int]:
    """Of one micro-batch, for each of a stage's chunks; how many are in flight is the schedule's."""
    micro_batch = MicroBatch.of(config)
    return [sum(chunk.kept_bytes(micro_batch).values()) for chunk in stage_chunks(config, stage)]
