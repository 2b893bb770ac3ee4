# mypy: disable-error-code=empty-body
"""Contract of the operators of attention, its sinks, and its key/value cache.

Sinks (Xiao et al., 2023; gpt-oss, 2025): one more score for each head, which takes part in the softmax of every query
and has no value. A cache has [slots, b, ...], of each text of a batch some earlier tokens.
"""

from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import AttentionRule, Partial, Scores


def split_qkv(qkv: Tensor, groups: int, heads_per_group: int, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Megatron's fused rows [s, b, g * (n/g + 2) * d] -> q [s, b, n, d], k [s, b, g, d], v [s, b, g, d].

    Within a group come its n/g query heads, then its key, then its value. groups: g, heads_per_group: n/g, head_size:
    d.
    """


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, start: int = 0) -> Tensor:
    """Rotate r elements, from `start` on, of each head of x [s, b, n, d] by angles whose cos and sin are [s, r] or
    [s, b, r].

    Element i of these is paired with i + r/2 or, `interleaved`, 2i with 2i + 1; the angles' last axis is laid out
    likewise.
    """


def as_heads(x: Tensor, heads: int) -> Tensor:
    """[s, b, n * d] -> [s, b, n, d]."""


def latent_keys_values(rows: Tensor, key: Tensor, heads: int, value_size: int) -> tuple[Tensor, Tensor]:
    """rows [s, b, n * (p + e)], of each head its own part of the key, then its value, and `key`, one part for the keys
    of all heads, [s, b, 1, r] -> k [s, b, n, p + r], each head's own part first, and v [s, b, n, e]. heads: n,
    value_size: e."""


def attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
    """softmax(scale q k^T) v, by the rule: q [s, b, n, d], k [s, b, g, d], v [s, b, g, e] -> [s, b, n * e]. Query head
    j uses group j // (n/g). Scores that a mask leaves out are at most -10000, on an Ascend's flash attention -inf.
    """


def attention_block(q: Tensor, k: Tensor, v: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    """Attention of the last queries of q [s, b, n, d] with the first keys and values of k [s, b, g, d], v [s, b, g, e].

    `scores` says how many those are. The result is put together with `partial`, which may be overwritten: what the
    same q gave with other keys. The first block must have all queries. Not recorded.
    """


def attention_block_gradient(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, partial: Partial, scores: Scores, dq: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq [s, b, n, d] with this block's part added; dk [s, b, g, d], dv [s, b, g, e] of this block alone, 0 for keys
    that it lacks), in float32.

    dout [s, b, n * e]; partial: the result over all blocks; dq: what the blocks before gave, which may be overwritten;
    the first block must have all queries. Not recorded.
    """


def with_sinks(partial: Partial, sinks: Tensor, first: int = 0) -> Partial:
    """The attention over all of a query's keys and its head's sink. partial: that over the keys alone, which may be
    overwritten.

    sinks: [m], of which the n heads' stand from index `first` on. Not recorded.
    """


def sinks_gradient(partial: Partial, sinks: Tensor, first: int, dout: Tensor) -> Tensor | None:
    """Put the gradient of the sinks [m], 0 for those of other heads, where `autograd.add_weight_gradient` does; returns
    what that returns: the gradient, or None if the sinks are frozen or in a gradient buffer.

    It is the negative sum over rows of p (dout . out), p the sink's probability; partial: what `with_sinks` gave; dout
    [s, b, n * e]. That of queries, keys and values is `attention_block_gradient`'s with this partial.
    """


def write_slots(cache: Tensor, rows: Tensor, slots: Array) -> Tensor:
    """cache [S, b, ...] with row (i, j) of rows [s, b, ...] written to slot slots[i, j] of text j; slots int32 [s, b],
    -1: the row is left out.

    The argument's own memory may be written to: use the result in its place. Not recorded.
    """


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, ages: Array, rule: AttentionRule, sinks: Tensor | None = None
) -> Tensor:
    """`attention` of one query of each text, q [1, b, n, d], with the first slots of a cache k [S, b, g, d],
    v [S, b, g, e] -> [1, b, n * e].

    ages: int32 [slots in use, b], by how many positions each key comes before the query; negative: the slot has none.
    Each text must have a key in the window. Of the rule, scale, head_offset and form (cap, bias, window) are read.
    sinks: [n], one more score for each head, which has no value. Not recorded.
    """
