"""Floating-point operations of a training step."""

from parallel_core.config import ModelConfig

_GATED = frozenset({"swiglu"})


def forward_flops_per_token(config: ModelConfig) -> float:
    """Multiply-adds, counted as two, of the matrix products that one token passes through; no-op layers have none.

    Attention counts the whole s x s square, not the causal half, as Megatron's figures do (Narayanan et al., 2021).
    """
    heads = config.num_attention_heads * config.kv_channels
    groups = config.num_query_groups * config.kv_channels
    projections = config.hidden_size * (heads + 2 * groups) + heads * config.hidden_size
    feed_forward = config.hidden_size * config.ffn_hidden_size * (3 if config.hidden_act in _GATED else 2)
    attention = 2 * heads * config.seq_length
    head = config.hidden_size * config.vocab_size
    layers = config.num_layers - len(config.parallel_config.noop_layers or ())
    return 2.0 * (layers * (projections + feed_forward + attention) + head)


def training_flops(config: ModelConfig, samples: int) -> float:
    """Floating-point operations of forward and backward (twice the forward) over `samples` sequences."""
    return 3.0 * forward_flops_per_token(config) * config.seq_length * samples
