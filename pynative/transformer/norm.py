"""LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019)."""

from dataclasses import replace
from typing import ClassVar

from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tape.layer_events import Observable


class _Norm(Observable):
    """The parameters of a norm over the last axis, of `size`, or of a block."""

    kind: ClassVar[str]

    def __init__(self, size: int | blocks.Norm, *, config: ModelConfig) -> None:
        super().__init__()
        block = size
        if not isinstance(block, blocks.Norm):
            block = blocks.Norm(self.kind, block, config.params_dtype, zero_centered=config.apply_layernorm_1p)
        self.epsilon, self.zero_centered = block.epsilon or config.norm_epsilon, block.zero_centered
        for name, parameter in block.parameters().items():
            setattr(self, name, make_parameter(*parameter))


class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis, epsilon inside the root."""

    kind = "LayerNorm"

    def construct(self, x: Tensor) -> Tensor:
        """Any shape ending in `size`, the same shape back."""
        return kernels.layer_norm(x, self.weight, self.bias, self.epsilon, zero_centered=self.zero_centered)


class RMSNorm(_Norm):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""

    kind = "RMSNorm"

    def construct(self, x: Tensor) -> Tensor:
        """Any shape ending in `size`, the same shape back."""
        return kernels.rms_norm(x, self.weight, self.epsilon, zero_centered=self.zero_centered)


FusedRMSNorm = RMSNorm
"""Which kernel computes it, the operators in use decide."""


_NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm, "FusedRMSNorm": RMSNorm}


def get_norm(config: ModelConfig, size: int | None = None, gain: float = 1.0) -> nn.Cell:
    """The configuration's norm of hidden states, over `size` (default: hidden size), its weight starting at `gain`."""
    norm = replace(blocks.Norm.of(config), gain=gain)
    return norm_cell(norm if size is None else replace(norm, size=size), config)


def norm_of(block: blocks.Norm | None, config: ModelConfig) -> nn.Cell | None:
    """The cell of a block's norm, if it has one."""
    return None if block is None else norm_cell(block, config)


def norm_cell(block: blocks.Norm, config: ModelConfig) -> nn.Cell:
    """The cell of a norm."""
    if block.kind not in _NORMS:
        raise ValueError(f"--normalization {block.kind}: one of {', '.join(_NORMS)}")
    return _NORMS[block.kind](block, config=config)
