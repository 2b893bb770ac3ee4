"""Options and patterns of stacks whose layers have the parts that a letter for each gives: state spaces, attention,
feed-forward blocks, experts."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option

MAMBA, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"
"""Megatron's letters of a pattern, for layers with one part each."""
SIDE_BY_SIDE = "H"
"""The letter of a layer with attention and a state space that read the same input, and a feed-forward block behind
them."""
LETTERS = {**{letter: letter for letter in (MAMBA, ATTENTION, MLP, EXPERTS)}, SIDE_BY_SIDE: f"{MAMBA}{ATTENTION}{MLP}"}
"""Letter -> the letters of the parts of its layer."""


@dataclass(kw_only=True)
class HybridConfig(Config):
    """Options of stacks whose layers have different parts, some of which are state spaces (Mamba-2, Dao and Gu,
    2024)."""

    layer_pattern: str | None = option("--hybrid-override-pattern", None)
    """The kind of each layer: M a state space, * attention, - a feed-forward block, E experts, H attention and a state
    space side by side and a feed-forward block (Falcon-H1, 2025); none: all have attention and a feed-forward block."""
    mamba_state_dim: int = option("--mamba-state-dim", 128, at_least=1)
    """Width of the keys and queries by which a state is written and read."""
    mamba_head_dim: int = option("--mamba-head-dim", 64, at_least=1)
    """Width of a head of a state space."""
    mamba_num_groups: int = option("--mamba-num-groups", 8, at_least=1)
    """Number of groups of heads of a state space that share keys and queries."""
    mamba_num_heads: int = option("--mamba-num-heads", None, at_least=1)
    """Number of heads of a state space; `--mamba-expand x --hidden-size / --mamba-head-dim` if not given."""
    mamba_d_conv: int = option("--mamba-d-conv", 4, at_least=1)
    """Number of tokens that an output of the short convolution depends on."""
    mamba_conv_bias: bool = option("--no-mamba-conv-bias", True, of="shapes")
    """Give the short convolution a bias."""
    mamba_rms_norm: bool = option("--no-mamba-rms-norm", True, of="shapes")
    """Norm each group of heads before the state space's last linear."""
    mamba_multipliers: list[float] | None = option("--mamba-multipliers", None)
    """Factors of the parts of a state space's first linear's output: gates, values, keys, queries, steps; none: 1
    each."""
    side_by_side_weights: list[float] | None = option("--side-by-side-weights", None)
    """Weights of attention and of the state space beside it, in their sum; none: 1 and 1."""

    @property
    def enabled(self) -> bool:
        """Whether a pattern gives the parts of each layer."""
        return self.layer_pattern is not None

    def kind(self, layer: int) -> str | None:
        """The pattern's letter for the layer of this global number, from 0; for layers beyond its end its last letter.
        None: there is no pattern. Raises IndexError for an empty pattern."""
        pattern = self.layer_pattern
        return None if pattern is None else pattern[min(layer, len(pattern) - 1)]

    def has(self, kind: str) -> bool:
        """Whether the pattern has the letter `kind`, or a letter for a layer of several parts with that part among
        them; True without a pattern."""
        return self.layer_pattern is None or any(kind in (one, *LETTERS.get(one, "")) for one in self.layer_pattern)


def spread(layers: int, attention: float, mlp: float) -> str:
    """A pattern of `layers` letters: state spaces, over which first attention and then feed-forward blocks are spread
    evenly (Megatron's rule). attention, mlp: their shares of the layers, 1 together at most; rounding may miss them."""
    pattern = [MAMBA] * layers
    count = round(layers * attention)
    _place(pattern, ATTENTION, (layers - count) / (count + 1))
    blocks = round(layers * mlp)
    if blocks:
        _place(pattern, MLP, (layers - count - blocks) / blocks)
    return "".join(pattern)


def _place(pattern: list[str], letter: str, distance: float) -> None:
    """Replace letters of state spaces in `pattern` by `letter`, about `distance` other state spaces apart."""
    left = distance
    for place, kind in enumerate(pattern):
        if kind == MAMBA and left < 0.5:
            pattern[place], left = letter, left + distance
        elif kind == MAMBA:
            left -= 1
