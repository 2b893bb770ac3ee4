"""Changes that a model makes to attention's scores before the softmax: a window, a cap, a bias by distance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import share


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """ALiBi's slope of each of n heads: 2^(-8 i / n), i = 1 .. n; where n is no power of two, the slopes for the power
    below, and for the remaining heads the first, third and so on of those for the power above (Press et al., "Train
    Short, Test Long", 2022, and its code)."""
    power = 2 ** math.floor(math.log2(heads))
    whole, between = (tuple(2.0 ** (-8.0 * i / n) for i in range(1, n + 1)) for n in (power, 2 * power))
    return whole + between[::2][: heads - power]


@dataclass(frozen=True)
class ScoreForm:
    """The changes to scaled scores, in order: cap tanh(score / cap), then the bias by distance; only keys within the
    window take part."""

    window: int | None = None
    """The number of tokens before its own that a query sees; None: all before it."""
    soft_cap: float | None = None
    """Scores become cap tanh(score / cap), between -cap and cap (Gemma 2, 2024); None: they stay."""
    slopes: tuple[float, ...] | None = None
    """ALiBi's slope of each head, over all ranks (0 for heads that only fill up the last ranks): slope x (the key's
    position - the query's) is added to a score; None: nothing is."""

    @classmethod
    def of(cls, config: ModelConfig, layer: int) -> "ScoreForm":
        """The changes that the configuration asks for in a layer, by its global number from 0; layers behind the
        decoder's (multi-token prediction) are as its last."""
        layer = min(layer, config.num_layers - 1)
        alibi = config.position_embedding_type == "alibi"
        ranks, heads = config.parallel_config.tensor_model_parallel_size, config.num_attention_heads
        of_padding = (0.0,) * (share(heads, ranks, heads // config.num_query_groups) * ranks - heads)
        slopes = (*alibi_slopes(heads), *of_padding) if alibi else None
        return cls(_window(config, layer), config.scales.attention_cap, slopes)

    @property
    def changes_scores(self) -> bool:
        """Whether a cap or a bias makes scores others than the scaled products; a window does not."""
        return self.soft_cap is not None or self.has_bias

    @property
    def has_bias(self) -> bool:
        """Whether a bias is added to scores (`bias`)."""
        return self.slopes is not None

    def bias(self, heads: Sequence[int], distances: Array) -> Array:
        """The bias of scores, float32 [n, ...]: slope x distance. heads: numbers of n heads, counted over all ranks.
        distances [...]: each key's position less the query's. For a form with `slopes` only (IndexError)."""
        slopes = np.array(self.slopes, np.float32)[list(heads)]
        return slopes.reshape(-1, *[1] * distances.ndim) * distances.astype(np.float32)

    def sees_all(self, queries: Array, keys: Array) -> bool:
        """Whether no key lies before the window of any query. queries, keys: their positions, ascending, one at
        least."""
        return self.window is None or keys[0] >= queries[-1] - self.window

    def sees_nothing(self, queries: Array, keys: Array) -> bool:
        """Whether all keys lie before the window of every query. queries, keys: their positions, ascending, one at
        least."""
        return self.window is not None and keys[-1] < queries[0] - self.window

    def before_window(self, queries: Array, keys: Array) -> Array:
        """Whether each key lies before the window of each query, bool [q, k], by the positions of q queries and k keys.
        For a form with a window only (AssertionError)."""
        assert self.window is not None
        return keys < queries[:, None] - self.window


PLAIN = ScoreForm()


def _window(config: ModelConfig, layer: int) -> int | None:
    """Tokens before its own that a query of a layer sees: the narrower one of the model's window, if the layer has it,
    and the band of --pre-tockens; None where neither is narrower than a sequence."""
    sizes = [config.sliding_window.size] if config.sliding_window.is_in(layer) else []
    if config.fa_config.has_band:
        sizes.append(config.fa_config.pre_tokens)
    return min((size for size in sizes if size is not None and size < config.seq_length - 1), default=None)
