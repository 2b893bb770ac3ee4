"""Experts whose weights are one parameter: Megatron's older grouped product.

`experts.weight1` is [h, e 2f] and `experts.weight2` is [e f, h] of a rank's e experts, but their memory means
[e, h, 2f] and [e, f, h]: transposed against linears of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from parallel_core.checkpoint.convert.megatron.names import Order, expert_of
from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.sharding import Box

_NUMBER = re.compile(r"\.local_experts\.\d+\.")
_FUSED = re.compile(r"(.*\.experts)\.weight([12])")


def apart(tensors: Mapping[str, LazyTensor], first: int, count: int) -> dict[str, LazyTensor]:
    """A rank's tensors with each of its `count` experts' on its own, numbered from `first`. Raises ValueError if they
    cannot be told apart."""
    found: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            found[name] = tensor
            continue
        if not count or prod(tensor.shape) % count:
            raise ValueError(f"{name}: {list(tensor.shape)} is not that of {count} experts, which its args say")
        for number in range(count):
            one = f"{match[1]}.local_experts.{first + number}.linear_fc{match[2]}.weight"
            found[one] = _expert(tensor, match[2] == "1", number, count)
    return found


def in_memory(names: Sequence[str], order: Order) -> list[list[str]]:
    """Runs of names that are one parameter: of fused experts each group, else each name."""
    runs: list[list[str]] = []
    before = None
    for name in names:
        group = _NUMBER.sub(".local_experts.", name) if order.fused and expert_of(name) is not None else None
        if group is None or group != before:
            runs.append([])
        runs[-1].append(name)
        before = group
    return runs


def _expert(tensor: LazyTensor, is_first: bool, number: int, count: int) -> LazyTensor:
    hidden, size = tensor.shape[0 if is_first else 1], prod(tensor.shape) // count
    memory = tensor.flat().part(Box((number * size,), (size,), (0,)))
    shape = (hidden, size // hidden) if is_first else (size // hidden, hidden)
    return memory.reshaped(shape).transposed()
