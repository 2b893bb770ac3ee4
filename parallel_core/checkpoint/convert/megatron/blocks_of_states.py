"""Optimizer states of torch_dist that are not shaped like their weights: blocks of ranks."""

from __future__ import annotations

from itertools import product
from math import prod

from parallel_core.checkpoint.lazy import Assembled, assembled
from parallel_core.sharding import Box


def unblocked(tensor: Assembled, shape: tuple[int, ...]) -> Assembled:
    """A state of shape `shape` from [blocks along each axis, entries of a block], a block being one rank's piece; as it
    is where it has the weight's shape."""
    if tensor.shape == shape:
        return tensor
    *counts, entries = tensor.shape
    block = tuple(n // c for n, c in zip(shape, counts, strict=True))
    if prod(block) != entries or prod(tensor.shape) != prod(shape):
        raise ValueError(f"a state of shape {list(tensor.shape)} does not fit its weight of {list(shape)}")
    origin = (0,) * len(shape)
    pieces = [
        (
            Box(tuple(i * n for i, n in zip(index, block, strict=True)), block, origin),
            tensor.part(Box((*index, 0), (*(1 for _ in index), entries), (*origin, 0))).reshaped(block),
        )
        for index in product(*map(range, counts))
    ]
    return assembled(shape, tensor.dtype, pieces)
