"""Rotary position embedding (Su et al., "RoFormer", 2021): frequencies, their scaling for texts longer than those that
a model was first trained on, and the angles of positions.

d head size, r channels of it that rotate, in r/2 pairs, s positions; frequencies are radians a position, float32 [r/2].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from parallel_core.config import ModelConfig
from parallel_core.config.families import RopeScalingConfig
from parallel_core.context import Ranges
from parallel_core.numerics.dtypes import Array


def inverse_frequencies(head_size: int, percent: float = 1.0, base: float = 10000.0) -> Array:
    """base^(-2i/r) for i < r/2, where r is head_size x percent rounded down: radians a position, float32 [r/2], for an
    odd r [(r + 1)/2]."""
    width = int(head_size * percent)
    return 1.0 / np.float32(base) ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))


@dataclass(frozen=True)
class Rotary:
    """The rotary embedding of layers: position p rotates pair i of each head by p x position_scale x frequency i."""

    inverse_frequencies: tuple[float, ...]
    """Radians a position, float32 numbers [r/2]."""
    position_scale: float = 1.0
    """Factor of positions ("position interpolation", Chen et al., 2023)."""
    interleaved: bool = False
    """Whether neighbouring channels (2i, 2i + 1) form a pair, instead of (i, i + r/2)."""
    magnitude: float = 1.0
    """Factor of cosines and sines; above 1 it makes scores larger (YaRN, LongRoPE)."""
    within: tuple[int, Rotary] | None = None
    """A length in tokens, and the rotary embedding that holds for texts of at most that length (LongRoPE's short
    factors); None: one embedding holds for all."""

    @classmethod
    def of(cls, config: ModelConfig, number: int | None = None) -> Rotary | None:
        """The rotary embedding of the configuration's ordinary attention; None without rotary positions. number: the
        global number of a layer, from 0 (layers of multi-token prediction are as the decoder's last); for one with a
        window and --rope-local-base-freq, frequencies have that base and no scaling. Number None: a layer without a
        window."""
        window = config.sliding_window
        if not config.use_rotary_embedding:
            return None
        if (
            number is not None
            and window.local_rotary_base is not None
            and window.size is not None
            and window.is_in(min(number, config.num_layers - 1))
        ):
            frequencies = inverse_frequencies(config.kv_channels, config.rotating_share, window.local_rotary_base)
            return cls(tuple(frequencies.tolist()), interleaved=config.rotary_interleaved)
        return cls.of_width(config, config.kv_channels, config.rotary_interleaved)

    @classmethod
    def of_model(cls, config: ModelConfig) -> Rotary | None:
        """The rotary embedding of latent attention if the configuration has it (`of_latent_attention`), else that of
        ordinary attention in a layer without a window; None for ordinary attention without rotary positions."""
        return cls.of_latent_attention(config) if config.multi_latent_attention.enabled else cls.of(config)

    @classmethod
    def of_latent_attention(cls, config: ModelConfig) -> Rotary:
        """The rotary embedding of latent attention's positional channels (`qk_pos_emb_head_dim`): without a
        `rope_scaling.type` the share --rotary-percent of them rotates, else all. Neighbouring channels (2i, 2i + 1) are
        a pair (DeepSeek-V2, 2024)."""
        return cls.of_width(config, config.multi_latent_attention.qk_pos_emb_head_dim, interleaved=True)

    @classmethod
    def of_compressed_attention(cls, config: ModelConfig, has_entries: bool) -> Rotary:
        """The rotary embedding of compressed attention's rotating channels (DeepSeek-V4, 2026), with the frequencies of
        `rotary_base`. has_entries: the layer attends to compressed entries; the frequencies are then those of
        `entry_rotary_base`, stretched by YaRN, without YaRN's factor of cosines and sines."""
        given, width = config.compressed_attention, config.multi_latent_attention.qk_pos_emb_head_dim
        if not has_entries:
            return cls(tuple(inverse_frequencies(width, 1.0, config.rotary_base).tolist()), interleaved=True)
        scaling = replace(config.rope_scaling, type="yarn", original_max_position_embeddings=given.original_length)
        plain = inverse_frequencies(width, 1.0, given.entry_rotary_base)
        stretched_ = yarn(plain, scaling, given.entry_rotary_base, given.entry_rotary_factor)
        return cls(tuple(stretched_.tolist()), interleaved=True)

    @property
    def back(self) -> Rotary:
        """The rotary embedding by the opposite angles, with the same magnitude and without `within`: it turns back what
        this one has turned; both multiply by `magnitude`."""
        return replace(self, position_scale=-self.position_scale, within=None)

    @classmethod
    def of_width(cls, config: ModelConfig, width: int, interleaved: bool) -> Rotary:
        """The rotary embedding of heads of which `width` channels, or --rotary-percent of these, rotate (all of them in
        latent attention with a `rope_scaling.type`), with the configuration's scaling for --seq-length. interleaved:
        neighbouring channels (2i, 2i + 1) are a pair, else (i, i + r/2)."""
        plain = inverse_frequencies(width, config.rotating_share, config.rotary_base)
        scale = 1.0 / (config.rotary_seq_len_interpolation_factor or 1.0)

        def of_length(length: int, within: tuple[int, Rotary] | None = None) -> Rotary:
            frequencies, magnitude = stretched(plain, config, length)
            return cls(tuple(frequencies.tolist()), scale, interleaved, magnitude, within)

        original = config.rope_scaling.original_max_position_embeddings or config.max_position_embeddings
        if config.rope_scaling.type != "longrope" or config.seq_length <= original:
            return of_length(config.seq_length)
        return of_length(config.seq_length, (original, of_length(original)))

    def of_text(self, length: int) -> Rotary:
        """The rotary embedding for one text of `length` tokens: the one in `within` if the text is not longer than the
        length there (LongRoPE's short factors), else this one."""
        return self if self.within is None or length > self.within[0] else self.within[1]

    def tables(self, positions: Ranges) -> tuple[Array, Array]:
        """The cosine and the sine of the angles of s positions, times `magnitude`, float32 [s, r] each, with r = 2 x
        the number of frequencies, the rotating channels: a pair's two channels have the same."""
        numbers = np.concatenate([np.arange(run.start, run.stop, run.step, dtype=np.float32) for run in positions])
        frequencies = np.array(self.inverse_frequencies, np.float32)
        angles = np.outer(numbers * np.float32(self.position_scale), frequencies).astype(np.float32)
        both = np.repeat(angles, 2, axis=1) if self.interleaved else np.concatenate([angles, angles], axis=1)
        return np.cos(both) * np.float32(self.magnitude), np.sin(both) * np.float32(self.magnitude)


LLAMA3_ORIGINAL_LENGTH = 8192
YARN_ORIGINAL_LENGTH = 4096
ORIGINAL_LENGTHS = {"llama3": LLAMA3_ORIGINAL_LENGTH, "yarn": YARN_ORIGINAL_LENGTH}
"""Kind of rotary scaling -> tokens of the length that a model was first trained on, where none is given; Megatron's."""


def stretched(frequencies: Array, config: ModelConfig, length: int) -> tuple[Array, float]:
    """The frequencies [r/2], of r rotating channels, under the configuration's `rope_scaling`, for sequences of
    `length` tokens, and the factor of cosines and sines. Without a type of scaling they stay, and the factor is 1."""
    scaling = config.rope_scaling
    match scaling.type:
        case "llama3":
            return llama3(frequencies, scaling), 1.0
        case "yarn":
            factor = config.rotary_factor
            sharpened = yarn_magnitude(factor, scaling.mscale) / yarn_magnitude(factor, scaling.mscale_all_dim)
            return yarn(frequencies, scaling, config.rotary_base, factor), sharpened
        case "longrope":
            return longrope(frequencies, scaling, length, config.max_position_embeddings)
        case "dynamic":
            original = scaling.original_max_position_embeddings or config.max_position_embeddings
            return dynamic(frequencies, config.rotary_factor, length / original), 1.0
    return frequencies, 1.0


def llama3(frequencies: Array, scaling: RopeScalingConfig) -> Array:
    """Frequencies [r/2], of r rotating channels, by Llama 3.1's rule ("The Llama 3 Herd of Models", 2024): those of
    pairs that turn fewer than low_freq_factor times over the original length are divided by `scaling.factor`, those of
    pairs that turn more than high_freq_factor times are left, those between blended. Without an original length it is
    8192, as in Megatron. low_freq_factor: below high_freq_factor."""
    length = scaling.original_max_position_embeddings or LLAMA3_ORIGINAL_LENGTH
    turns = length * frequencies / (2 * math.pi)  # turns of each pair over the original length
    share_kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return _blended(frequencies, np.clip(share_kept, 0.0, 1.0), scaling.factor)


def _blended(frequencies: Array, kept: Array, factor: float) -> Array:
    """Frequencies of which the share `kept` [r/2] stays and the rest is divided by the factor."""
    return np.asarray((frequencies * (kept + (1.0 - kept) / factor)).astype(frequencies.dtype))


def yarn(frequencies: Array, scaling: RopeScalingConfig, base: float, factor: float) -> Array:
    """Frequencies [r/2] by YaRN (Peng et al., 2023): pairs that turn more than beta_fast times over the original length
    are left, those that turn fewer than beta_slow times are divided by `factor`, those between are a blend of both,
    whose share of divided frequency grows evenly with the pair's number. This holds for an original length of at least
    2 pi beta_slow and at most 2 pi beta_fast `base`, and beta_fast above beta_slow. base: the one that `frequencies`
    are powers of."""
    length = scaling.original_max_position_embeddings or YARN_ORIGINAL_LENGTH
    pairs = len(frequencies)

    def pair_with(turns: float) -> float:
        """The number, counted from 0 and with a fraction, of the pair that turns so often over the original length;
        below 0 for more turns than pair 0 makes."""
        return pairs * math.log(length / (turns * 2 * math.pi)) / math.log(base)

    first, last = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.yarn_correction_range_round_to_int:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    share_stretched = (np.arange(pairs, dtype=np.float32) - first) / (last - first or 0.001)
    return _blended(frequencies, 1.0 - np.clip(share_stretched, 0.0, 1.0), factor)


def yarn_magnitude(factor: float, mscale: float) -> float:
    """YaRN's factor of cosines and sines, 0.1 mscale ln(factor) + 1, which sharpens attention where positions are
    stretched by `factor`; 1 for a factor of at most 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope(frequencies: Array, scaling: RopeScalingConfig, length: int, longest: int) -> tuple[Array, float]:
    """Frequencies [r/2] by LongRoPE (Ding et al., 2024) and the factor of cosines and sines: each pair's frequency is
    divided by its number in long_factor where `length` is above the original length, else in short_factor.

    longest: tokens of the longest sequence of the model, and the original length where none is given. The factor of
    cosines and sines is --long-mscale or --short-mscale; if not given, sqrt(1 + ln(longest / original) / ln(original)),
    or 1 if the longest is not above the original.
    """
    original = scaling.original_max_position_embeddings or longest
    divisors, magnitude = (
        (scaling.long_factor, scaling.long_mscale)
        if length > original
        else (scaling.short_factor, scaling.short_mscale)
    )
    if magnitude is None:
        magnitude = math.sqrt(1.0 + math.log(longest / original) / math.log(original)) if longest > original else 1.0
    return frequencies / np.array(divisors, frequencies.dtype), magnitude


def dynamic(frequencies: Array, factor: float, lengths: float) -> Array:
    """Frequencies [r/2], of r rotating channels, by dynamic NTK scaling. lengths: length of the sequences over the
    original length; above 1 frequency i is multiplied by (factor x lengths - (factor - 1))^(-2i / (r - 2)), as by a
    larger base; else, or with one pair alone, frequencies stay."""
    pairs = len(frequencies)
    if lengths <= 1 or pairs == 1:
        return frequencies
    growth = factor * lengths - (factor - 1)
    # NTK scaling: base^(-i / pairs), with the base multiplied by growth^(pairs / (pairs - 1))
    return np.asarray((frequencies * growth ** (-np.arange(pairs) / (pairs - 1))).astype(frequencies.dtype))
