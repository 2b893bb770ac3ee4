"""Queries, keys and values where there are fewer key/value groups than tensor-parallel ranks: ranks that share a group
need its key and value, and query heads of their own.

The fused rows of query, key and value are cut evenly over the ranks all the same, so that no rank has a whole group;
the ranks' results are gathered, and each takes what it needs (as Megatron-Core does). s sequence, b batch, n heads, g
key/value groups, d head size, t tensor-parallel size, a multiple of g.
"""

from mindspore import Tensor

from parallel_core.attention.fused_rows import QueryKeyValueRows
from pynative import kernels
from pynative.collectives import Group
from pynative.tape.autograd import Moved


def take_shared_group(qkv: Tensor, group: Group, rows: QueryKeyValueRows) -> Tensor:
    """qkv [s, b, (n + 2 g) d / t] -> [s, b, (n/t + 2) d], both wider by gates if there are any: the rank's query heads,
    their gates, then the key and the value they use; n query heads of size d, g key/value groups, t ranks in `group`.

    This takes one all-gather forward and one reduce-scatter backward. With g >= t, however, every rank has whole groups
    already: then the result is qkv itself, and nothing is sent.
    """
    if rows.groups >= group.size:
        return qkv
    *queries, key, value = rows.of_sharing_rank(group.rank, group.size)
    ranges, width = (*queries, range(key.start, value.stop)), qkv.shape[-1] * group.size
    return Moved.apply(
        qkv,
        lambda qkv: kernels.take_columns(group.all_gather(qkv, axis=-1), ranges),
        lambda dy: group.reduce_scatter(kernels.place_columns(dy, ranges, width), axis=-1),
    )
