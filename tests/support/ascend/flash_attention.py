"""Doubles of an Ascend's flash attention, forward and backward.

Rules are those of `ops.flash_attention_score` and of the primitive FlashAttentionScore in MindSpore 2.10: their
documentation of query, attn_mask and sparse_mode. The primitive of the gradient has none; it takes what forward took,
and what forward gave.
"""

from collections.abc import Sequence
from itertools import pairwise

import mindspore
from mindspore import Tensor, ops
from mindspore.ops.auto_generate import FlashAttentionScore, FlashAttentionScoreGrad

from parallel_core.attention.score_form import PLAIN, ScoreForm
from pynative.kernels.block import AttentionRule, Partial, Scores
from pynative.kernels.ops import attention as composed
from tests.support.ascend.definitions import SIXTEEN_BITS, Double, require

AXES = {"SBH": "sbh", "BSH": "bsh", "BSND": "bsnd", "BNSD": "bnsd"}
"""Layout -> its axes. TND is not here: it has sequences one behind the other."""
MOST_SEQUENCES = 1024

DENSE, LEFT_UP_CAUSAL, BAND = 0, 2, 4
COMPRESSED = (2048, 2048)
COPIES = 8
NO_LIMIT = 2147483647


def rows(x: Tensor, layout: str, head_size: int) -> Tensor:
    """A query, key or value in its layout as [s, b, n, d]."""
    require(layout in AXES and x.ndim == len(AXES[layout]), f"flash attention: {x.shape} in layout {layout}")
    if layout in ("SBH", "BSH"):
        x = x.reshape(*x.shape[:2], -1, head_size)
    return x.transpose({"SBH": (0, 1, 2, 3), "BSH": (1, 0, 2, 3), "BSND": (1, 0, 2, 3), "BNSD": (2, 0, 1, 3)}[layout])


def in_layout(x: Tensor, layout: str) -> Tensor:
    """x [s, b, n, d] in the layout of that name."""
    x = x.transpose({"SBH": (0, 1, 2, 3), "BSH": (1, 0, 2, 3), "BSND": (1, 0, 2, 3), "BNSD": (1, 2, 0, 3)}[layout])
    return x.reshape(*x.shape[:2], -1) if layout in ("SBH", "BSH") else x


def head_size_of(query: Tensor, layout: str, heads: int) -> int:
    """The head size d: the last axis, or its share of one head where heads and d are one axis."""
    return query.shape[-1] if layout in ("BSND", "BNSD") else query.shape[-1] // heads


def check_inputs(query: Tensor, key: Tensor, value: Tensor, layout: str, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [s, b, n, d] in float32, after the rules for types and sizes."""
    types = {x.dtype for x in (query, key, value)}
    require(len(types) == 1 and types <= set(SIXTEEN_BITS), f"flash attention: types {types}, not one of 16 bits")
    d = head_size_of(query, layout, heads)
    require(d % 16 == 0 and 0 < d <= 512, f"flash attention: head size {d} is no multiple of 16 up to 512")
    q, k, v = (rows(x.astype(mindspore.float32), layout, d) for x in (query, key, value))
    require(q.shape[2] == heads and 1 <= heads <= 256, f"flash attention: {q.shape[2]} heads, head_num {heads}")
    require(k.shape == v.shape, f"flash attention: keys {k.shape}, values {v.shape}")
    require(heads % k.shape[2] == 0, f"flash attention: {heads} heads of queries, {k.shape[2]} of keys")
    require(q.shape[1] == k.shape[1] <= 2048, f"flash attention: batch {q.shape[1]} and {k.shape[1]}")
    require(max(len(q), len(k)) <= 512 * 1024, "flash attention: a sequence above 512k")
    return q, k, v


def check_mask(mask: Tensor | None, mode: int, shape: tuple[int, int, int, int]) -> None:
    """Check attn_mask: [B, N1, S1, S2], [B, 1, S1, S2] or [S1, S2]; in sparse modes 2 and 4 [2048, 2048], True above
    the diagonal."""
    b, n, s, t = shape
    require(mode in (DENSE, LEFT_UP_CAUSAL, BAND), f"flash attention: sparse_mode {mode} is not used")
    if mask is not None:
        require(mask.dtype in (mindspore.bool_, mindspore.uint8), f"flash attention: attn_mask is {mask.dtype}")
    if mode == DENSE:
        fitting = (None, (b, n, s, t), (b, 1, s, t), (s, t))
        require((mask if mask is None else mask.shape) in fitting, f"flash attention: mask {mask}, scores {shape}")
        return
    require(mask is not None and mask.shape == COMPRESSED, f"flash attention: sparse_mode {mode} wants {COMPRESSED}")
    triangle = composed.causal_mask(COMPRESSED[0]).asnumpy()
    require(bool((mask.asnumpy().astype(bool) == triangle).all()), "flash attention: the mask is no upper triangle")


def check_settings(keep_prob: float, pre_tokens: int, next_tokens: int, limit: int, *unused: object) -> None:
    """Check that dropout, dense bands, position codes, padding and prefixes, which our calls never use, are at their
    defaults."""
    assert (keep_prob, pre_tokens, next_tokens) == (1.0, limit, limit) and all(x is None for x in unused)


def check_lengths(queries: Sequence[int] | None, keys: Sequence[int] | None, query: Tensor, key: Tensor) -> list[int]:
    """Check actual_seq_qlen and actual_seq_kvlen of TND, cumulated lengths, none of them 0, equal for queries and keys
    here; return them."""
    require(queries is not None and keys is not None, "flash attention: TND needs actual_seq_qlen and actual_seq_kvlen")
    assert queries is not None and keys is not None
    require(all(type(end) is int for end in (*queries, *keys)), "flash attention: lengths are no integers")
    require(len(queries) == len(keys) <= MOST_SEQUENCES, f"flash attention: {len(queries)}, {len(keys)} sequences")
    require(queries[-1] == len(query) and keys[-1] == len(key), "flash attention: the last lengths are not T1 and T2")
    require(all(a < b for a, b in pairwise((0, *keys))), f"flash attention: key lengths up to {keys}")
    assert list(queries) == list(keys), "the double knows queries and keys of the same sequences alone"
    return list(queries)


def flash_attention_score(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, real_shift: Tensor | None = None,
    drop_mask: Tensor | None = None, padding_mask: Tensor | None = None, attn_mask: Tensor | None = None,
    prefix: Tensor | None = None, actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    keep_prob: float = 1.0, scalar_value: float = 1.0, pre_tokens: int = NO_LIMIT, next_tokens: int = NO_LIMIT,
    inner_precise: int = 0, input_layout: str = "BSH", sparse_mode: int = 0,
) -> Tensor:  # fmt: skip
    """ops.flash_attention_score: the output in the query's layout and type."""
    unused = (real_shift, drop_mask, padding_mask, prefix)
    if input_layout == "TND":
        check_settings(keep_prob, pre_tokens, next_tokens or NO_LIMIT, NO_LIMIT, *unused)
        lengths = check_lengths(actual_seq_qlen, actual_seq_kvlen, query, key)
        require(next_tokens == 0 and sparse_mode == LEFT_UP_CAUSAL, f"flash attention: TND, sparse_mode {sparse_mode}")
        check_mask(attn_mask, sparse_mode, (1, head_num, len(query), len(key)))
        arrays = check_inputs(*(x.expand_dims(0) for x in (query, key, value)), "BSND", head_num)
        parts = ([x[start:stop] for x in arrays] for start, stop in pairwise((0, *lengths)))
        outs = [composed.attention(*part, AttentionRule(scale=scalar_value)) for part in parts]
        return ops.cat(outs).reshape(query.shape).astype(query.dtype)
    unused = (*unused, actual_seq_qlen, actual_seq_kvlen)
    form = PLAIN
    if sparse_mode == BAND:
        require(pre_tokens >= 0 and next_tokens == 0, f"flash attention: band {pre_tokens}, {next_tokens}")
        form, pre_tokens, next_tokens = ScoreForm(pre_tokens), NO_LIMIT, NO_LIMIT
    check_settings(keep_prob, pre_tokens, next_tokens, NO_LIMIT, *unused)
    require(type(scalar_value) is float, f"flash attention: scalar_value {scalar_value!r} is no float")
    q, k, v = check_inputs(query, key, value, input_layout, head_num)
    check_mask(attn_mask, sparse_mode, (q.shape[1], q.shape[2], len(q), len(k)))
    dense = attn_mask if sparse_mode == DENSE else None
    if dense is not None:
        dense = (dense if dense.ndim == 4 else dense.reshape(1, 1, *dense.shape)).astype(mindspore.bool_)
    causal = sparse_mode in (LEFT_UP_CAUSAL, BAND)
    out = composed.attention(q, k, v, AttentionRule(scale=scalar_value, causal=causal, mask=dense, form=form))
    return in_layout(out.reshape(q.shape), input_layout).astype(query.dtype)


def block(kernel: FlashAttentionScore, q: Tensor, k: Tensor, mask: Tensor | None) -> Scores:
    """The composed operator's description of one block of scores, from the arguments of a FlashAttentionScore
    primitive."""
    check_mask(mask, kernel.sparse_mode, (q.shape[1], q.shape[2], len(q), len(k)))
    assert mask is None or kernel.sparse_mode == LEFT_UP_CAUSAL, "the double knows no dense mask here"
    return Scores(
        scale=kernel.scale_value, causal=kernel.sparse_mode == LEFT_UP_CAUSAL, mask=None, dropout_rate=0.0,
        dropout_key=(), head_offset=0, query_positions=(range(len(q)),), key_positions=(range(len(k)),),
        seq_length=len(k),
    )  # fmt: skip


def layout_name(kernel: FlashAttentionScore) -> str:
    """The name of the layout that a primitive was made with; the primitive keeps MindSpore's number of it."""
    numbers = {FlashAttentionScore(1, input_layout=name).input_layout: name for name in AXES}
    return numbers[kernel.input_layout]


def eightfold(x: Tensor) -> Tensor:
    """Repeat each row's number eight times on a new last axis, as the kernel stores statistics."""
    return ops.tile(x.expand_dims(-1), (1, 1, 1, COPIES))


def score(
    self: FlashAttentionScore, query: Tensor, key: Tensor, value: Tensor, real_shift: Tensor | None = None,
    drop_mask: Tensor | None = None, padding_mask: Tensor | None = None, attn_mask: Tensor | None = None,
    prefix: Tensor | None = None, actual_seq_qlen: Tensor | None = None, actual_seq_kvlen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """FlashAttentionScore: (maximum, sum, nothing, output); the first two float32 [b, n, s, 8]."""
    unused = (real_shift, drop_mask, padding_mask, prefix, actual_seq_qlen, actual_seq_kvlen)
    check_settings(self.keep_prob, self.pre_tokens, self.next_tokens, NO_LIMIT, *unused)
    layout = layout_name(self)
    q, k, v = check_inputs(query, key, value, layout, self.head_num)
    out, maximum, inverse = composed.attention_block(q, k, v, block(self, q, k, attn_mask))
    out = in_layout(out.reshape(q.shape), layout).astype(query.dtype)
    return eightfold(maximum), eightfold(1 / inverse), Tensor(0.0, query.dtype), out


GRADIENT_LIMIT = 65536


def score_gradient(
    self: FlashAttentionScoreGrad, query: Tensor, key: Tensor, value: Tensor, dy: Tensor,
    pse_shift: Tensor | None = None, drop_mask: Tensor | None = None, padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None, softmax_max: Tensor | None = None, softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None, attention_in: Tensor | None = None, prefix: Tensor | None = None,
    actual_seq_qlen: Tensor | None = None, actual_seq_kvlen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, None]:  # fmt: skip
    """FlashAttentionScoreGrad: (dq, dk, dv, nothing) in the inputs' layout and type, from forward's statistics."""
    unused = (pse_shift, drop_mask, padding_mask, softmax_in, prefix, actual_seq_qlen, actual_seq_kvlen)
    check_settings(self.keep_prob, self.pre_tokens, self.next_tokens, GRADIENT_LIMIT, *unused)
    layout = layout_name(self)
    q, k, v = check_inputs(query, key, value, layout, self.head_num)
    for name, x in (("dy", dy), ("attention_in", attention_in)):
        fits = x is not None and x.shape == query.shape and x.dtype == query.dtype
        require(fits, f"gradient: {name} is not as query")
    assert softmax_max is not None and softmax_sum is not None and attention_in is not None
    for x in (softmax_max, softmax_sum):
        require(x.shape == (q.shape[1], q.shape[2], len(q), COPIES), f"gradient: statistics {x.shape}")
        require(x.dtype == mindspore.float32, f"gradient: statistics of {x.dtype}")
        require(bool((x.asnumpy() == x.asnumpy()[..., :1]).all()), "gradient: the eight copies differ")
    wide_dy, out = (rows(x.astype(mindspore.float32), layout, q.shape[-1]) for x in (dy, attention_in))
    flat_dy, flat_out = (x.reshape(*x.shape[:2], -1) for x in (wide_dy, out))
    partial = Partial(flat_out, softmax_max[..., 0], 1 / softmax_sum[..., 0])
    scores = block(self, q, k, atten_mask)
    gradients = composed.attention_block_gradient(q, k, v, flat_dy, partial, scores)
    dq, dk, dv = (in_layout(x, layout).astype(query.dtype) for x in gradients)
    return dq, dk, dv, None


DOUBLES = (
    Double(ops, "flash_attention_score", flash_attention_score),
    Double(FlashAttentionScore, "__call__", score),
    Double(FlashAttentionScoreGrad, "__call__", score_gradient),
)
