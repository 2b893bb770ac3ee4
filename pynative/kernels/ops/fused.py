"""`ops` with an Ascend's fused operators where it has them. Not run on hardware: nobody here had one.

The signatures are those of MindSpore 2.10. What isn't defined here is the composed operator. Layer norm, gelu and AdamW
are always the fused ones; `forms` are those that a flag switches on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore
from mindspore import Tensor, mint, ops
from mindspore.ops.auto_generate import AdamW

from pynative.kernels import ops as composed
from pynative.kernels.dropout import Key
from pynative.kernels.ops.activation import ACTIVATIONS
from pynative.kernels.ops.attention import causal_mask
from pynative.kernels.ops.blocked_attention import blocked_attention
from pynative.kernels.ops.fused_block import (
    COMPRESSED_MASK_SIZE,
    DENSE_MASK,
    LEFT_UP_CAUSAL,
)
from pynative.kernels.ops.fused_block import attention_block as attention_block
from pynative.kernels.ops.fused_block import attention_block_gradient as attention_block_gradient
from pynative.kernels.ops.norm import scale as norm_scale

_adamw = AdamW()


def __getattr__(name: str) -> Any:
    """The composed operator."""
    return getattr(composed, name)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool) -> Tensor:
    """aclnnLayerNorm."""
    weight = norm_scale(weight, zero_centered).astype(x.dtype)
    return mint.nn.functional.layer_norm(x, x.shape[-1:], weight, bias.astype(x.dtype), epsilon)


def fused_rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool) -> Tensor:
    """aclnnRmsNorm."""
    return ops.rms_norm(x, norm_scale(weight, zero_centered).astype(x.dtype), epsilon)[0]


GELUS = {
    "gelu_tanh": lambda x: mint.nn.functional.gelu(x, approximate="tanh"),
    "gelu_erf": lambda x: mint.nn.functional.gelu(x, approximate="none"),
}
"""aclnnGelu."""


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return (ACTIVATIONS | GELUS)[activation](x if bias is None else x + bias)


def fused_bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """aclnnSwiGlu."""
    if activation != "swiglu":
        return bias_activation(x, bias, activation)
    return ops.swiglu(x if bias is None else x + bias, -1)


_HALVES, _NEIGHBOURS = 0, 1  # rotary_position_embedding's mode


def fused_rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """aclnnRotaryPositionEmbedding, which takes the angles of a position as [s, 1 or b, 1, r] in the type of x."""
    rotated = cos.shape[-1]
    shape = (x.shape[0], -1, 1, rotated)
    angles = (angle.reshape(shape).astype(x.dtype) for angle in (cos, sin))
    turned = ops.rotary_position_embedding(x[..., :rotated], *angles, _NEIGHBOURS if interleaved else _HALVES)
    return ops.cat((turned, x[..., rotated:]), -1) if rotated < x.shape[-1] else turned


_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "SBH": lambda x: x.reshape(*x.shape[:2], -1),
    "BSH": lambda x: x.transpose(1, 0, 2, 3).reshape(x.shape[1], x.shape[0], -1),
    "BSND": lambda x: x.transpose(1, 0, 2, 3),
    "BNSD": lambda x: x.transpose(1, 2, 0, 3),
}
"""Layout that flash_attention_score may read -> heads [s, b, n, d] in it."""

_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "SBH": lambda x: x,
    "BSH": lambda x: x.transpose(1, 0, 2),
    "BSND": lambda x: x.transpose(1, 0, 2, 3).reshape(x.shape[1], x.shape[0], -1),
    "BNSD": lambda x: x.transpose(2, 0, 1, 3).reshape(x.shape[2], x.shape[0], -1),
}
"""And what it gives back, as [s, b, n * d]."""


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, mask: Tensor | None,
    dropout_rate: float, dropout_key: Key, head_offset: int, input_layout: str,
) -> Tensor:  # fmt: skip
    """aclnnFlashAttentionScore: 16-bit types only, and masked scores are -inf there.

    Float32, and dropout (so that masks stay those of every other device), go in blocks of composed operators.
    """
    if q.dtype == mindspore.float32 or dropout_rate:
        return blocked_attention(
            q, k, v, scale=scale, causal=causal, mask=mask,
            dropout_rate=dropout_rate, dropout_key=dropout_key, head_offset=head_offset,
        )  # fmt: skip
    mode = DENSE_MASK
    if mask is None and causal:
        mask, mode = causal_mask(COMPRESSED_MASK_SIZE), LEFT_UP_CAUSAL
    elif mask is not None and len(mask) == 1:
        mask = mask.reshape(mask.shape[-2:])
    heads = (_LAYOUTS[input_layout](x) for x in (q, k, v))
    return _ROWS[input_layout](
        ops.flash_attention_score(
            *heads, q.shape[2], attn_mask=mask, scalar_value=scale, input_layout=input_layout, sparse_mode=mode
        )
    )


def forms(input_layout: str) -> dict[str, Callable[..., Tensor]]:
    """Operator -> its fused form; the layout is what the attention kernel reads."""
    return {
        "attention": partial(flash_attention, input_layout=input_layout),
        "rotary": fused_rotary,
        "bias_activation": fused_bias_activation,
        "rms_norm": fused_rms_norm,
    }


def adamw_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, learning_rate: float, beta1: float,
    beta2: float, epsilon: float, weight_decay: float, step: int, grad_scale: float,
) -> None:  # fmt: skip
    """aclnnApplyAdamWV2, which counts steps from 0."""
    _adamw(
        param, exp_avg, exp_avg_sq, exp_avg_sq, grad * grad_scale, Tensor(step - 1, mindspore.float32),
        learning_rate, beta1, beta2, weight_decay, epsilon, False, False,
    )  # fmt: skip
