# mypy: disable-error-code=empty-body
"""Contract of the operators of a key/value cache: [slots, b, ...], of each text of a batch some earlier tokens."""

from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import AttentionRule


def write_slots(cache: Tensor, rows: Tensor, slots: Array) -> Tensor:
    """cache [S, b, ...] with rows [s, b, ...] at slots int32 [s, b], each in its text's; -1: a row is left out.

    The cache itself may be written to, and is used no more. Not recorded.
    """


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, ages: Array, rule: AttentionRule, sinks: Tensor | None = None
) -> Tensor:
    """`attention` of one query of each text, q [1, b, n, d], with a cache k [S, b, g, d], v [S, b, g, e] ->
    [1, b, n * e].

    ages: int32 [slots in use, b], by how many positions each key comes before the query; negative: there is none.
    sinks: [n], see `with_sinks`. Not recorded.
    """
