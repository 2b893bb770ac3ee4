"""LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019)."""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import mindspore
from mindspore import Tensor, nn, ops

from parallel_core import blocks
from parallel_core.config import ModelConfig
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.kernels.ops.linear import delivered
from pynative.parameter import make_parameter
from pynative.tape.autograd import Function, add_weight_gradient
from pynative.tape.layer_events import Observable


class _Norm(Observable):
    """The base of norms over the last axis: parameters for `size` features, or as a block describes them."""

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
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis; with zero_centered
    (--apply-layernorm-1p) 1 + weight in place of weight."""

    kind = "LayerNorm"

    def construct(self, x: Tensor) -> Tensor:
        """x of any shape [..., size] -> normed, of the same shape and type."""
        return kernels.layer_norm(x, self.weight, self.bias, self.epsilon, zero_centered=self.zero_centered)


class RMSNorm(_Norm):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis; with zero_centered (--apply-layernorm-1p) 1 + weight
    in place of weight."""

    kind = "RMSNorm"

    def construct(self, x: Tensor) -> Tensor:
        """x of any shape [..., size] -> normed, of the same shape and type."""
        return kernels.rms_norm(x, self.weight, self.epsilon, zero_centered=self.zero_centered)


class _OverRanks(Function):
    """RMS norm of x [s, b, n/t, d] over its last two axes and the t ranks of a group together; weight [n/t d]."""

    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Group, epsilon: float, zero_centered: bool) -> Tensor:
        rows, width = _rows(x), weight.shape[0] * group.size
        inverse = ops.rsqrt(_sum(ops.square(rows), group) / width + epsilon)
        scale = kernels.cast(weight, mindspore.float32) + float(zero_centered)
        ctx.save_for_backward(x, inverse)
        ctx.weight, ctx.scale, ctx.group, ctx.width = weight, scale, group, width
        return kernels.cast((rows * inverse * scale).reshape(x.shape), x.dtype)

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse = ctx.saved_tensors
        normed, upstream = _rows(x) * inverse, _rows(dy)
        scaled = upstream * ctx.scale
        mean = _sum(scaled * normed, ctx.group) / ctx.width
        dx = kernels.cast(((scaled - normed * mean) * inverse).reshape(x.shape), x.dtype)
        of_weight = (upstream * normed).sum(axis=(0, 1))
        return dx, add_weight_gradient(ctx.weight, partial(delivered, of_weight)), None, None, None


def _rows(x: Tensor) -> Tensor:
    """[s, b, n, d] -> float32 [s, b, n d]."""
    return kernels.cast(x, mindspore.float32).reshape(*x.shape[:2], -1)


def _sum(x: Tensor, group: Group) -> Tensor:
    """The sum of each token's features [s, b, f] over the last axis and the ranks: [s, b, 1]."""
    total = x.sum(axis=-1, keepdims=True)
    return group.all_reduce(total) if group.size > 1 else total


class RMSNormOfAllHeads(_Norm):
    """RMS norm over all n heads of a token together, of which each of the t tensor-parallel ranks has n/t."""

    kind = "RMSNorm"

    def construct(self, x: Tensor) -> Tensor:
        """[s, b, n/t, d] -> normed, of the same shape and type."""
        group = parallel_state.get_tensor_model_parallel_group()
        normed: Tensor = _OverRanks.apply(x, self.weight, group, self.epsilon, self.zero_centered)
        return normed


FusedRMSNorm = RMSNorm
"""Another name of RMSNorm; the operators in use decide which kernel computes it."""


_NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm, "FusedRMSNorm": RMSNorm}


def get_norm(config: ModelConfig, size: int | None = None, gain: float = 1.0) -> nn.Cell:
    """The configuration's norm of hidden states, over `size` (default: hidden size). gain: the factor of the normed
    values at first; the weight is one less with --apply-layernorm-1p. Raises ValueError for an unknown kind."""
    norm = replace(blocks.Norm.of(config), gain=gain)
    return norm_cell(norm if size is None else replace(norm, size=size), config)


def norm_of(block: blocks.Norm | None, config: ModelConfig) -> nn.Cell | None:
    """The cell of a norm's block; None for None. Raises ValueError for an unknown kind."""
    return None if block is None else norm_cell(block, config)


def norm_cell(block: blocks.Norm, config: ModelConfig) -> nn.Cell:
    """The cell of a norm's block. Raises ValueError for an unknown kind."""
    if block.kind not in _NORMS:
        raise ValueError(f"--normalization {block.kind}: one of {', '.join(_NORMS)}")
    of_all_heads = isinstance(block, blocks.NormOfAllHeads)
    return (RMSNormOfAllHeads if of_all_heads else _NORMS[block.kind])(block, config=config)
