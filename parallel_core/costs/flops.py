"""Floating-point operations of a training step."""

from parallel_core.blocks import model_chunks
from parallel_core.config import ModelConfig


def forward_flops_per_token(config: ModelConfig) -> float:
    """Multiply-adds, counted as two, of the matrix products that one token passes through (`Block.forward_flops`)."""
    return sum(chunk.forward_flops(1, config.seq_length) for chunk in model_chunks(config))


def training_flops(config: ModelConfig, samples: int) -> float:
    """Floating-point operations of forward and backward over `samples` sequences: twice the forward, but of products
    with frozen weights once."""
    frozen = sum(chunk.frozen_flops(1) for chunk in model_chunks(config))
    return (3.0 * forward_flops_per_token(config) - frozen) * config.seq_length * samples
