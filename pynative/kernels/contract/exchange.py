# mypy: disable-error-code=empty-body
"""Contract of the operators of tensors laid out as they travel between ranks."""

from collections.abc import Sequence

from mindspore import Tensor

from parallel_core.numerics.dtypes import Array


def chunk(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    """The index-th (from 0) of `count` equal chunks of x along `axis`, contiguous. Not recorded."""


def sequence_first(x: Tensor) -> Tensor:
    """[b, s] -> [s, b], contiguous: token ids, labels, masks. Not recorded."""


def take_columns(x: Tensor, ranges: Sequence[range]) -> Tensor:
    """x [..., w] -> these columns of it, one range after another. Not recorded."""


def place_columns(x: Tensor, ranges: Sequence[range], width: int) -> Tensor:
    """x [..., c] -> [..., width] with x's columns at `ranges`, ascending, and zeros elsewhere; the transpose of
    `take_columns`. Not recorded."""


def pack_heads(xs: Sequence[Tensor], parts: int, times: Sequence[int]) -> Tensor:
    """Tensors [s, b, n_i, ...] as one, [parts * s, b, w], whose j-th block of s rows has the j-th of `parts` equal
    parts of each tensor's heads, side by side; w: the elements of these parts at a position.

    Before they are cut, each head of xs[i] is repeated times[i] times, its copies one after another. Not recorded.
    """


def unpack_heads(
    packed: Tensor, parts: int, shapes: Sequence[tuple[int, ...]], times: Sequence[int]
) -> tuple[Tensor, ...]:
    """The transpose of `pack_heads`: [parts * s, b, w] -> tensors [s, b, *shapes[i]], the times[i] copies of a head
    added up.

    Not recorded.
    """


def gather_rows(x: Tensor, sources: Array, row: tuple[int, ...]) -> Tensor:
    """x [..., *row] -> [r, *row]: its rows with the numbers `sources`, int32 [r], counted over all leading axes; zeros
    where a number is -1. Not recorded."""


def sum_rows(x: Tensor, places: Array, shape: tuple[int, ...]) -> Tensor:
    """x [r, ...] -> `shape`, of n rows: the sums of the rows at places [n, m], int32, -1 for none. Not recorded.

    The transpose of `gather_rows` where places are those of the copies (`parallel_core.moe.token_dispatch.Copies`).
    Sums are computed in float32 and rounded once.
    """
