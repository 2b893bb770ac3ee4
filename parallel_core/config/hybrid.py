"""Stacks of layers whose parts a letter each says: state spaces, attention, feed-forward blocks and experts."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option

MAMBA, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"
"""The letters of a pattern that are Megatron's, of one part each."""
SIDE_BY_SIDE = "H"
"""The letter of attention and a state space that read the same input, and a feed-forward block behind them."""
LETTERS = {**{letter: letter for letter in (MAMBA, ATTENTION, MLP, EXPERTS)}, SIDE_BY_SIDE: f"{MAMBA}{ATTENTION}{MLP}"}
"""Letter -> the parts of its layer."""


@dataclass(kw_only=True)
class HybridConfig(Config):
    """Layers of other parts each, some of which are state spaces (Mamba-2, Dao and Gu, 2024)."""

    layer_pattern: str | None = option("--hybrid-override-pattern", None)
    """The kind of each layer: M a state space, * attention, - a feed-forward block, E experts, H attention and a state
    space side by side and a feed-forward block (Falcon-H1, 2025); none: all have attention and a feed-forward block."""
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
    mamba_rms_norm: bool = option("--no-mamba-rms-norm", True, of="shapes")
    """A norm by groups stands before the last linear."""
    mamba_multipliers: list[float] | None = option("--mamba-multipliers", None)
    """Factors of what a state space's first linear gives: of gates, values, keys, queries and steps; none: 1 each."""
    side_by_side_weights: list[float] | None = option("--side-by-side-weights", None)
    """Weights of what attention and the state space beside it add to the residual; none: 1 and 1."""

    @property
    def enabled(self) -> bool:
        """Whether a pattern says which parts layers have."""
        return self.layer_pattern is not None

    def kind(self, layer: int) -> str | None:
        """The letter of the layer of this global number, from 0; layers beyond the last are as it. None: no hybrid."""
        pattern = self.layer_pattern
        return None if pattern is None else pattern[min(layer, len(pattern) - 1)]

    def has(self, kind: str) -> bool:
        """Whether some layer is of this kind, or has a part of it; all have everything where there is no pattern."""
        return self.layer_pattern is None or any(kind in (one, *LETTERS.get(one, "")) for one in self.layer_pattern)


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
