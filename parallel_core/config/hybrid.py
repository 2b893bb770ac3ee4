"""Stacks of layers of one part each: state spaces, attention, feed-forward blocks and experts."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option

MAMBA, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"
"""The letters of a pattern, which are Megatron's."""


@dataclass(kw_only=True)
class HybridConfig(Config):
    """Layers of one part each, some of which are state spaces (Mamba-2, Dao and Gu, 2024)."""

    layer_pattern: str | None = option("--hybrid-override-pattern", None)
    """The kind of each layer: M a state space, * attention, - a feed-forward block, E experts; none: all have attention
    and a feed-forward block."""
    mamba_state_dim: int = option("--mamba-state-dim", 128, at_least=1)
    """Width of what a state is written and read by."""
    mamba_head_dim: int = option("--mamba-head-dim", 64, at_least=1)
    """Width of a head."""
    mamba_num_groups: int = option("--mamba-num-groups", 8, at_least=1)
    """Groups of heads, which share what states are written and read by."""
    mamba_num_heads: int = option("--mamba-num-heads", None, at_least=1)
    """Heads; `--mamba-expand x --hidden-size / --mamba-head-dim` if not given."""
    mamba_d_conv: int = option("--mamba-d-conv", 4, at_least=1)
    """Tokens that the short convolution reaches over."""
    mamba_conv_bias: bool = option("--no-mamba-conv-bias", True, of="shapes")
    """The convolution has a bias."""

    @property
    def enabled(self) -> bool:
        """Whether layers have one part each."""
        return self.layer_pattern is not None

    def kind(self, layer: int) -> str | None:
        """The letter of the layer of this global number, from 0; layers beyond the last are as it. None: no hybrid."""
        pattern = self.layer_pattern
        return None if pattern is None else pattern[min(layer, len(pattern) - 1)]

    def has(self, kind: str) -> bool:
        """Whether some layer is of this kind; all have everything where there is no pattern."""
        return self.layer_pattern is None or kind in self.layer_pattern


def spread(layers: int, attention: float, mlp: float) -> str:
    """A pattern with these shares of attention and feed-forward blocks at even distances: attention between equal runs
    of the others, feed-forward blocks behind equal runs of state spaces (Megatron's rule)."""
    pattern = [MAMBA] * layers
    count = round(layers * attention)
    _place(pattern, ATTENTION, (layers - count) / (count + 1))
    blocks = round(layers * mlp)
    if blocks:
        _place(pattern, MLP, (layers - count - blocks) / blocks)
    return "".join(pattern)


def _place(pattern: list[str], letter: str, distance: float) -> None:
    """Put a letter in the place of state spaces, about so many others apart."""
    left = distance
    for place, kind in enumerate(pattern):
        if kind == MAMBA and left < 0.5:
            pattern[place], left = letter, left + distance
        elif kind == MAMBA:
            left -= 1
