"""Floating-point operations of a training step."""

from collections.abc import Iterable

from parallel_core.blocks import Chunk, model_chunks
from parallel_core.config import ModelConfig


def forward_flops_per_token(config: ModelConfig) -> float:
    """Multiply-adds, counted as two, of the matrix products that one token passes through (`Block.forward_flops`)."""
    return sum(chunk.forward_flops(1, config.seq_length) for chunk in model_chunks(config))


def training_flops(config: ModelConfig, samples: int) -> float:
    """Floating-point operations of forward and backward over `samples` sequences."""
    return flops_of(model_chunks(config), config.seq_length) * samples


def flops_of(chunks: Iterable[Chunk], seq_length: int) -> float:
    """Of one sequence: forward, and backward twice that, but of products with frozen weights once."""
    of_token = (3.0 * chunk.forward_flops(1, seq_length) - chunk.frozen_flops(1) for chunk in chunks)
    return sum(of_token) * seq_length
