"""Rotary frequencies for sequences longer than those a model was first trained on."""

import math

import numpy as np

from parallel_core.config.families import RopeScalingConfig

LLAMA3_ORIGINAL_LENGTH = 8192


def llama3(inverse_frequency: np.ndarray, scaling: RopeScalingConfig) -> np.ndarray:
    """Llama 3.1's: long wavelengths are stretched by the factor, short ones left, those between blended.

    inverse_frequency [r/2], radians a position. "The Llama 3 Herd of Models" (2024), by Megatron's constants.
    """
    length = scaling.original_max_position_embeddings or LLAMA3_ORIGINAL_LENGTH
    turns = length * inverse_frequency / (2 * math.pi)  # over the original length: length / wavelength
    share_kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(share_kept, 0.0, 1.0)
    return (inverse_frequency * (kept + (1.0 - kept) / scaling.factor)).astype(inverse_frequency.dtype)
