"""The linears of experts by an Ascend's grouped product. Not run on hardware: nobody here had one.

One call multiplies a list of at most MOST_GROUPS matrices by a list of others, each pair of its own sizes (split_item
0, group_type -1). So weights are read where they are, and all three products are of this one form; the form with a
`group_list` wants all weights in one tensor, a copy of them in every call, and is not documented for the weights'
gradient. MindSpore documents 16-bit types for the list form and no empty matrices: experts without rows are left out.
Composed operators compute float32, a single expert, no rows at all, and all experts if one has more than LONGEST_AXIS
rows. R rows, i inputs, o outputs.
"""

from collections.abc import Sequence

import mindspore
from mindspore import Tensor, ops
from mindspore.ops.auto_generate import GroupedMatmulV4

from pynative.kernels.ops import experts as composed
from pynative.kernels.ops.linear import delivered

_grouped_matmul = GroupedMatmulV4()

MOST_GROUPS, LONGEST_AXIS = 128, 65535
"""The largest number of products of aclnnGroupedMatmul at once, and the longest last axis of a matrix."""


def _is_fused(x: Tensor, counts: Sequence[int]) -> bool:
    return x.dtype != mindspore.float32 and len(counts) > 1 and 0 < max(counts) <= LONGEST_AXIS


def _with_rows(counts: Sequence[int]) -> list[int]:
    """The numbers of the groups that have rows."""
    return [number for number, count in enumerate(counts) if count]


def _products(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """The product of each matrix on the left with its partner on the right, MOST_GROUPS in a call."""
    starts = range(0, len(left), MOST_GROUPS)
    pairs = ((left[start : start + MOST_GROUPS], right[start : start + MOST_GROUPS]) for start in starts)
    return [y for xs, ws in pairs for y in _grouped_matmul(list(xs), list(ws), split_item=0, group_type=-1)]


def _by_group(x: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """x [R, i] with each row times its group's weight [i, o] -> [R, o]; weights of the groups that have rows only."""
    return composed.joined(_products(composed.rows_by_group(x, [count for count in counts if count]), weights))


def _transposed(x: Tensor) -> Tensor:
    return ops.transpose(x, (1, 0))


def grouped_linear_forward(x: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """`kernels.grouped_linear_forward` by aclnnGroupedMatmulV4, whose weights may be transposed views; by the composed
    operator for float32, one expert, no rows, or an expert of more than LONGEST_AXIS (65535) rows."""
    if not _is_fused(x, counts):
        return composed.grouped_linear_forward(x, weights, counts)
    return _by_group(x, [_transposed(weights[number]) for number in _with_rows(counts)], counts)


def grouped_linear_input_gradient(dy: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """`kernels.grouped_linear_input_gradient` by aclnnGroupedMatmulV4, composed where `grouped_linear_forward` is."""
    if not _is_fused(dy, counts):
        return composed.grouped_linear_input_gradient(dy, weights, counts)
    return _by_group(dy, [weights[number] for number in _with_rows(counts)], counts)


def grouped_linear_weight_gradient(
    dy: Tensor, x: Tensor, counts: Sequence[int], out: Sequence[Tensor | None], accumulate: Sequence[bool]
) -> list[Tensor]:
    """`kernels.grouped_linear_weight_gradient` by aclnnGroupedMatmulV4, composed where `grouped_linear_forward` is. The
    kernel's left matrices have to be contiguous: the transposes are copied."""
    if not _is_fused(dy, counts):
        return composed.grouped_linear_weight_gradient(dy, x, counts, out, accumulate)
    numbers, sizes = _with_rows(counts), [count for count in counts if count]
    left = [_transposed(rows).contiguous() for rows in composed.rows_by_group(dy, sizes)]
    products = dict(zip(numbers, _products(left, composed.rows_by_group(x, sizes)), strict=True))
    empty = composed.no_rows_gradient(dy, x)
    return [
        delivered(products.get(number, empty), memory, adds)
        for number, (memory, adds) in enumerate(zip(out, accumulate, strict=True))
    ]
