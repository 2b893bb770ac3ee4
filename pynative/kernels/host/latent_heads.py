"""Features and heads taken apart and joined, as latent attention does (DeepSeek-V2, 2024), on the host."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import rows_of
from pynative.kernels.host.threads import row_blocks, run
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert, widened
from pynative.tape.autograd import Moved


def _copied(pairs: Sequence[tuple[Array, Array]], row_bytes: int) -> None:
    """Copy each pair's second array into its first, by blocks of their common rows of `row_bytes` bytes."""

    def block(start: int, stop: int) -> None:
        for out, source in pairs:
            out[start:stop] = source[start:stop]

    run(block, row_blocks(len(pairs[0][0]), row_bytes))


def _parts(array: Array, widths: Sequence[int]) -> list[Array]:
    """Views of the array with these widths along the last axis, one behind the other."""
    return np.split(array, np.cumsum(widths)[:-1], axis=-1)


def _split(x: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    rows = rows_of(x)
    parts = [np.empty((len(rows), width), rows.dtype) for width in widths]
    _copied([*zip(parts, _parts(rows, widths), strict=True)], rows.shape[1] * rows.itemsize)
    return tuple(from_numpy(part.reshape(*x.shape[:-1], -1)) for part in parts)


def _joined(*parts: Tensor) -> Tensor:
    sources = [rows_of(part) for part in parts]
    widths = [source.shape[1] for source in sources]
    whole = np.empty((len(sources[0]), sum(widths)), sources[0].dtype)
    _copied([*zip(_parts(whole, widths), sources, strict=True)], whole.shape[1] * whole.itemsize)
    return from_numpy(whole.reshape(*parts[0].shape[:-1], -1))


def split_features(x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    return Moved.apply(x, partial(_split, widths=widths), _joined)


def as_heads(x: Tensor, heads: int) -> Tensor:
    return Moved.apply(
        x,
        lambda x: from_numpy(array_of(x).reshape(*x.shape[:-1], heads, -1)),
        lambda dy: from_numpy(array_of(dy).reshape(*dy.shape[:-2], -1)),
    )


def _keys_values(rows: Tensor, key: Tensor, heads: int, value_size: int) -> tuple[Tensor, ...]:
    source, shared = rows_of(rows), array_of(key)
    both = source.reshape(len(source), heads, -1)
    plain = both.shape[2] - value_size
    k = np.empty((len(both), heads, plain + shared.shape[-1]), both.dtype)
    v = np.empty((len(both), heads, value_size), both.dtype)
    pairs = [(k[..., :plain], both[..., :plain]), (v, both[..., plain:])]
    spread = np.broadcast_to(shared.reshape(len(both), 1, -1), (len(both), heads, shared.shape[-1]))
    _copied([*pairs, (k[..., plain:], spread)], k[0].nbytes + v[0].nbytes)
    return tuple(from_numpy(x.reshape(*rows.shape[:-1], heads, -1)) for x in (k, v))


def _rows_and_key(dk: Tensor, dv: Tensor, key_size: int) -> tuple[Tensor, Tensor]:
    keys, values = (array_of(x).reshape(-1, *x.shape[2:]) for x in (dk, dv))
    plain = keys.shape[2] - key_size
    both = np.empty((*keys.shape[:2], plain + values.shape[2]), keys.dtype)
    shared = np.empty((len(keys), 1, key_size), keys.dtype)
    _copied([(both[..., :plain], keys[..., :plain]), (both[..., plain:], values)], both[0].nbytes)
    convert(widened(keys[..., plain:]).sum(axis=1, keepdims=True), shared)
    leading = dk.shape[:2]
    return from_numpy(both.reshape(*leading, -1)), from_numpy(shared.reshape(*leading, 1, -1))


def latent_keys_values(rows: Tensor, key: Tensor, heads: int, value_size: int) -> tuple[Tensor, Tensor]:
    move = partial(_keys_values, heads=heads, value_size=value_size)
    return Moved.apply(rows, key, move, partial(_rows_and_key, key_size=key.shape[-1]))
