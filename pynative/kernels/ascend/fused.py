"""An Ascend's fused operators that flags switch on. Not run on hardware: nobody here had one.

The signatures are those of MindSpore 2.10.
"""

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, ops

from parallel_core.batch.documents import ends_in_rows, wrong_starts
from parallel_core.numerics.dtypes import Array
from pynative.kernels.ascend import always as unswitched
from pynative.kernels.ascend.attention_block import (
    BAND,
    COMPRESSED_MASK_SIZE,
    DENSE_MASK,
    LEFT_UP_CAUSAL,
    fits,
    with_width,
)
from pynative.kernels.block import AttentionRule
from pynative.kernels.contract.table import Operator
from pynative.kernels.ops import blocked_attention
from pynative.kernels.ops import rotary as composed_rotary
from pynative.kernels.ops.attention import causal_mask
from pynative.kernels.ops.experts import weighted
from pynative.kernels.ops.norm import norm_scale


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    """`kernels.rms_norm` by aclnnRmsNorm."""
    return ops.rms_norm(x, ops.cast(norm_scale(weight, zero_centered), x.dtype), epsilon)[0]


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """`kernels.bias_activation`, swiglu by aclnnSwiGlu; other activations are those of `always`."""
    if activation != "swiglu":
        return unswitched.bias_activation(x, bias, activation)
    return ops.swiglu(x if bias is None else x + bias, -1)


def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    """`kernels.weighted_activation`, with `bias_activation` of this module as its activation, or for an x without rows
    the composed one of `ops`."""
    return weighted(bias_activation, x, factors, activation)


_HALVES, _NEIGHBOURS = 0, 1  # values of the operator's `mode`


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, start: int = 0) -> Tensor:
    """`kernels.rotary` by aclnnRotaryPositionEmbedding, which takes cos and sin as [s, 1 or b, 1, r] in the type of x.
    Interleaved, with angles that each of several samples has of its own, composed operators compute."""
    rotated = cos.shape[-1]
    shape = (x.shape[0], -1, 1, rotated)
    angles = [ops.cast(angle.reshape(shape), x.dtype) for angle in (cos, sin)]
    if interleaved and angles[0].shape[1] > 1:
        return composed_rotary.rotary(x, cos, sin, interleaved, start)
    turning = x[..., start : start + rotated]
    turned = ops.rotary_position_embedding(turning, *angles, _NEIGHBOURS if interleaved else _HALVES)
    return composed_rotary.between(x, start, turned)


DOCUMENTS, MAXIMUM_DOCUMENTS = "TND", 1024
"""The layout of sequences of different lengths one behind the other, [b s, n, d], and how many the kernel takes."""

_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "SBH": lambda x: x.reshape(*x.shape[:2], -1),
    "BSH": lambda x: x.transpose(1, 0, 2, 3).reshape(x.shape[1], x.shape[0], -1),
    "BSND": lambda x: x.transpose(1, 0, 2, 3),
    "BNSD": lambda x: x.transpose(1, 2, 0, 3),
    DOCUMENTS: lambda x: x.transpose(1, 0, 2, 3).reshape(-1, *x.shape[2:]),
}
"""Layout that flash_attention_score may read -> function from heads [s, b, n, d] to that layout."""

_HEADS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SBH": lambda x, q: x.reshape(*x.shape[:2], q.shape[2], -1),
    "BSH": lambda x, q: x.reshape(*x.shape[:2], q.shape[2], -1).transpose(1, 0, 2, 3),
    "BSND": lambda x, q: x.transpose(1, 0, 2, 3),
    "BNSD": lambda x, q: x.transpose(2, 0, 1, 3),
    DOCUMENTS: lambda x, q: x.reshape(q.shape[1], q.shape[0], *x.shape[1:]).transpose(1, 0, 2, 3),
}
"""Layout -> a function that turns attention's result into [s, b, n, d], like the queries q."""


def flash_attention(input_layout: str) -> Operator:
    """An implementation of `kernels.attention` by aclnnFlashAttentionScore, which gets heads in this layout ("SBH",
    "BSH", "BSND" or "BNSD"), or documents one behind the other in layout TND. In the kernel masked scores are -inf.

    Float32, head numbers and sizes that the kernel does not take, dropout (so that masks stay those of every other
    device), caps, ALiBi, largest scores that are asked for, a window with a mask or without causal order, and documents
    with a mask, without causal order, with a window, more than 1024 or with `wrong_starts` are computed in blocks of
    composed operators. The rule must have no chosen keys: the kernel would not heed them.
    """

    def attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        asks_more = rule.dropout_rate or rule.form.changes_scores or rule.largest is not None
        if not fits(q, v) or asks_more or not _can_mask(rule):
            return blocked_attention.attention(q, k, v, rule)
        width, layout = max(q.shape[3], v.shape[3]), input_layout if rule.first_keys is None else DOCUMENTS
        heads = (_LAYOUTS[layout](with_width(x, width)) for x in (q, k, v))
        masking = _masking(rule) if rule.first_keys is None else _documents(rule.first_keys)
        out = ops.flash_attention_score(*heads, q.shape[2], scalar_value=rule.scale, input_layout=layout, **masking)
        return _HEADS[layout](out, q)[..., : v.shape[3]].reshape(*q.shape[:2], -1)

    return attention


def _can_mask(rule: AttentionRule) -> bool:
    """Whether the kernel takes the rule's mask, window and documents together: a window only in causal order, documents
    only in causal order without a window, and at most MAXIMUM_DOCUMENTS of them."""
    window, first_keys = rule.form.window, rule.first_keys
    if first_keys is None:
        return window is None or rule.is_causal
    if not rule.is_causal or window is not None or wrong_starts(first_keys).any():
        return False
    return len(ends_in_rows(first_keys)) <= MAXIMUM_DOCUMENTS


def _documents(first_keys: Array) -> dict[str, Any]:
    """The kernel's arguments for causal order within documents, all samples' one behind the other."""
    ends = ends_in_rows(first_keys)
    return {
        "attn_mask": causal_mask(COMPRESSED_MASK_SIZE), "sparse_mode": LEFT_UP_CAUSAL, "next_tokens": 0,
        "actual_seq_qlen": ends, "actual_seq_kvlen": ends,
    }  # fmt: skip


def _masking(rule: AttentionRule) -> dict[str, Any]:
    """The kernel's arguments for the rule's mask [b or 1, 1, s, s], causal order or window; a mask that all samples
    share is given as [s, s]."""
    mask, window = rule.mask, rule.form.window
    if mask is not None:
        return {"attn_mask": mask.reshape(mask.shape[-2:]) if len(mask) == 1 else mask, "sparse_mode": DENSE_MASK}
    if not rule.causal:
        return {"attn_mask": None, "sparse_mode": DENSE_MASK}
    triangle = causal_mask(COMPRESSED_MASK_SIZE)
    if window is None:
        return {"attn_mask": triangle, "sparse_mode": LEFT_UP_CAUSAL}
    return {"attn_mask": triangle, "sparse_mode": BAND, "pre_tokens": window, "next_tokens": 0}
