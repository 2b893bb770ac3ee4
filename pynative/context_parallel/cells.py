"""Ring attention and Ulysses as cells, under the names of MindSpeed-Core-MS.

s the length of the shard of the sequence that a rank holds, b batch, n heads, g key/value groups, d head size, h = n d.
"""

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from pynative import parallel_state
from pynative.collectives import Group
from pynative.context_parallel.ring import ring_attention
from pynative.context_parallel.ulysses import heads_to_sequence, sequence_to_heads
from pynative.kernels.block import AttentionRule

UNBOUNDED = 2147483647
_MASK_TYPES = ("causal", "full", "user_defined")
_LAYOUTS = ("BSH", "SBH")


def _refuse(cell: str, given: dict[str, Any], taken: dict[str, Any]) -> None:
    """Raise ValueError if an argument of MindSpeed-Core-MS's cell, of those `given` by name, is not the one value that
    is `taken` here. cell: its name, for the message."""
    for name, value in taken.items():
        if given[name] != value:
            raise ValueError(f"{cell}: {name}={given[name]!r} is not available; only {value!r} is")


class RingAttention(nn.Cell):
    """Attention of a sequence that is sharded over the ring's ranks; see `ring_attention`.

    Raises ValueError for another keep_prob than 1 (dropout), other pre_tokens or next_tokens than the defaults (a
    sliding window), another sparse_mode than 0, use_alibi_mask, and another input_layout than "BSH" and "SBH". With
    use_attention_mask every call must bring a mask; with use_mqa keys and values have one head.
    """

    def __init__(
        self,
        head_num: int,
        keep_prob: float = 1.0,
        scale_value: float = 1.0,
        pre_tokens: int = UNBOUNDED,
        next_tokens: int = UNBOUNDED,
        input_layout: str = "BSH",
        sparse_mode: int = 0,
        use_attention_mask: bool = False,
        use_alibi_mask: bool = False,
        use_mqa: bool = False,
    ) -> None:
        super().__init__()
        given = {"keep_prob": keep_prob, "pre_tokens": pre_tokens, "next_tokens": next_tokens}
        given |= {"sparse_mode": sparse_mode, "use_alibi_mask": use_alibi_mask}
        taken = {"keep_prob": 1.0, "pre_tokens": UNBOUNDED, "next_tokens": UNBOUNDED}
        _refuse("RingAttention", given, taken | {"sparse_mode": 0, "use_alibi_mask": False})
        if input_layout not in _LAYOUTS:
            raise ValueError(f"RingAttention: input_layout={input_layout!r}: one of {', '.join(_LAYOUTS)}")
        self.head_num, self.scale_value, self.input_layout = head_num, scale_value, input_layout
        self.use_attention_mask, self.use_mqa = use_attention_mask, use_mqa

    def construct(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        alibi_mask: None = None,
        prefix: None = None,
        padding_mask: None = None,
        attn_mask_type: str = "causal",
    ) -> Tensor:
        """Causal, full or masked attention: q [s, b, h], k and v [s, b, g d] (BSH: [b, s, ...]) -> q's shape; s the
        length of the rank's shard of the sequence, g key/value heads of size d. attn_mask_type: "causal", "full" or
        "user_defined". attn_mask, bool [b or 1, 1, s, whole sequence], True = masked, comes with "user_defined" and
        with no other. Raises ValueError for another attn_mask_type, for a mask without "user_defined" or the reverse,
        for no mask with use_attention_mask, for keys of several heads with use_mqa, and for alibi_mask, prefix and
        padding_mask."""
        others = {"alibi_mask": alibi_mask, "prefix": prefix, "padding_mask": padding_mask}
        _refuse("RingAttention", others, dict.fromkeys(others))
        if attn_mask_type not in _MASK_TYPES or (attn_mask is None) == (attn_mask_type == "user_defined"):
            raise ValueError(
                f"RingAttention: attn_mask_type={attn_mask_type!r}: one of {', '.join(_MASK_TYPES)}; an attn_mask "
                f"belongs to user_defined, and to no other"
            )
        if self.use_attention_mask and attn_mask is None:
            raise ValueError("RingAttention: use_attention_mask=True needs an attn_mask in every call; pass one")
        size = q.shape[-1] // self.head_num
        queries, keys, values = (self._heads(x, size) for x in (q, k, v))
        if self.use_mqa and keys.shape[2] != 1:
            raise ValueError(f"RingAttention: use_mqa, but keys have {keys.shape[2]} heads")
        group, causal = parallel_state.get_context_parallel_group_for_hybrid_ring(), attn_mask_type == "causal"
        rule = AttentionRule(scale=self.scale_value, causal=causal, mask=attn_mask)
        return self._turned(ring_attention(queries, keys, values, group, rule))

    def _heads(self, x: Tensor, size: int) -> Tensor:
        """The tensor as [s, b, heads, size], from the caller's layout."""
        turned = self._turned(x)
        return turned.reshape(*turned.shape[:2], -1, size)

    def _turned(self, x: Tensor) -> Tensor:
        """Turn a tensor between the caller's layout and [s, b, ...]."""
        return x.swapaxes(0, 1).contiguous() if self.input_layout == "BSH" else x


class FlashSP(RingAttention):
    """`RingAttention` under another name, in layout BSH and without use_mqa. Raises ValueError for other values of
    these, and of dp, mp and sp.

    Args:
        dp: 1, or the data-parallel size, which follows from the number of ranks.
        mp: 1, the only value.
        sp: the ring's size.
    """

    def __init__(
        self,
        head_num: int,
        keep_prob: float = 1.0,
        scale_value: float = 1.0,
        pre_tokens: int = UNBOUNDED,
        next_tokens: int = UNBOUNDED,
        input_layout: str = "BSH",
        sparse_mode: int = 0,
        use_attention_mask: bool = False,
        use_alibi_mask: bool = False,
        use_mqa: bool = False,
        dp: int = 1,
        mp: int = 1,
        sp: int = 1,
    ) -> None:
        ring = parallel_state.get_context_parallel_group_for_hybrid_ring().size
        given = {"input_layout": input_layout, "use_mqa": use_mqa, "mp": mp, "sp": sp}
        _refuse("FlashSP", given, {"input_layout": "BSH", "use_mqa": False, "mp": 1, "sp": ring})
        replicas = parallel_state.get_data_parallel_world_size()
        if dp not in (1, replicas):
            raise ValueError(f"FlashSP: dp={dp} is not the data-parallel size of this job, {replicas}; leave it out")
        super().__init__(
            head_num, keep_prob, scale_value, pre_tokens, next_tokens, input_layout, sparse_mode, use_attention_mask,
            use_alibi_mask,
        )  # fmt: skip


class UlyssesContextAttention(nn.Cell):
    """A cell around `local_attention`, which sees whole sequences and a share of the heads, for callers that have a
    shard of the sequence and all heads.

    local_attention takes q [u s, b, n/u, d] and k, v [u s, b, g'/u, d], and gives [u s, b, h/u]; u is the group's size,
    s the length of a shard, b the batch, n the query heads, g the key/value heads, d their size, h = n d, g' the least
    common multiple of g and u. Raises ValueError unless scatter_idx is 2 and gather_idx 0.
    """

    def __init__(
        self,
        local_attention: Callable[..., Tensor],
        sequence_process_group: Group,
        scatter_idx: int = 2,
        gather_idx: int = 0,
    ) -> None:
        super().__init__()
        _refuse(
            "UlyssesContextAttention",
            {"scatter_idx": scatter_idx, "gather_idx": gather_idx},
            {"scatter_idx": 2, "gather_idx": 0},
        )
        self.local_attention, self.group = local_attention, sequence_process_group

    def construct(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """query [s, b, n, d], key and value [s, b, g, d] -> [s, b, n d]; s the length of the rank's shard, n heads, g
        key/value heads. Other arguments go to `local_attention`."""
        heads = sequence_to_heads(query, key, value, self.group)
        return heads_to_sequence(self.local_attention(*heads, *args, **kwargs), self.group)
