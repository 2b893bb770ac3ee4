"""Options of mixers that keep a state instead of keys and values."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class LinearAttentionConfig(Config):
    """Options of mixers that keep a state, gated delta nets (Yang et al., 2024) or lightning attention, in the place of
    attention in some layers. The sizes are those of gated delta nets."""

    linear_attention_freq: int | list[int] | None = option("--linear-attention-freq", None)
    """Every so many-th layer has attention, or the layers that a list by layer has as 0; the others a state, of the
    kind of --experimental-attention-variant."""
    linear_conv_kernel_dim: int = option("--linear-conv-kernel-dim", 4, at_least=1, of="shapes")
    """Number of tokens that an output of the short convolution depends on."""
    linear_key_head_dim: int = option("--linear-key-head-dim", 128, at_least=1)
    """Width of a head of queries and keys."""
    linear_value_head_dim: int = option("--linear-value-head-dim", 128, at_least=1)
    """Width of a head of values."""
    linear_num_key_heads: int = option("--linear-num-key-heads", 16, at_least=1)
    """Number of heads of queries and keys."""
    linear_num_value_heads: int = option("--linear-num-value-heads", 32, at_least=1)
    """Number of heads of values; those that share a key head are neighbours."""

    def is_linear(self, layer: int) -> bool:
        """Whether the layer of this global number, from 0, keeps a state instead of attention, in a model whose
        --experimental-attention-variant is a mixer that keeps one. Without --linear-attention-freq all do; layers
        beyond the end of a list of it are as its last (IndexError for an empty list)."""
        frequency = self.linear_attention_freq
        if isinstance(frequency, list):
            return bool(frequency[min(layer, len(frequency) - 1)])
        return frequency is None or (layer + 1) % frequency != 0
