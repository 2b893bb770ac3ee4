"""Optimizer states of torch_dist that are not shaped like their weights: blocks of ranks, and flat buckets."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.convert.megatron import cuts
from parallel_core.checkpoint.convert.megatron.names import (
    LOCAL_ORDER,
    TRANSFORMER_ENGINE_ORDER,
    in_order,
    layer_of,
)
from parallel_core.checkpoint.convert.megatron.optimizer import OURS
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import Assembled, LazyTensor, assembled, from_bfloat16
from parallel_core.sharding import Box, Coordinates, place

ALIGNMENT = 64
"""Entries: where a parameter may begin in a bucket."""

_BUCKET = re.compile(
    r"optimizer\.distributed\.dp_group_idx_(\d+)\.gbuf_idx_(\d+)\.dtype_\(.*\)\.bucket_idx_(\d+)\.(param|exp_avg|exp_avg_sq)"
)


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


def of_buckets(
    tensors: Mapping[str, Assembled], model: Model, args: Mapping[str, Any], folder: Path
) -> dict[str, dict[str, LazyTensor]]:
    """States from flat buckets: the parameters of a rank in reverse order of its model, each at a multiple of 64.

    The order of a layer's parameters depends on the layers that saved; the one whose float32 values round to the
    weights is taken. Raises ValueError where none does, or the layout is not told.
    """
    remedy = "leave the optimizer out by --no-load-optim"
    tensor, stages = (args.get(f"{kind}_model_parallel_size") or 0 for kind in ("tensor", "pipeline"))
    if not tensor or not stages or args.get("virtual_pipeline_model_parallel_size") or _experts_apart(args, tensor):
        raise ValueError(f"{folder}: flat optimizer states of this layout have no names; {remedy}")
    buckets: dict[int, dict[str, list[Assembled]]] = defaultdict(lambda: defaultdict(list))
    for key in sorted(tensors, key=_numbers):
        match = _BUCKET.fullmatch(key)
        if match:
            buckets[int(match[1])][OURS[match[4]]].append(tensors[key])
    for order in (LOCAL_ORDER, TRANSFORMER_ENGINE_ORDER):
        parts = [
            _rank_states(buckets[rank], _of_stage(model, rank // tensor, stages, order), rank % tensor, tensor, model)
            for rank in range(tensor * stages)
        ]
        if all(part is not None for part in parts):
            states = _merged([part for part in parts if part is not None], tensor, model)
            if _rounds_to_weights(states, model):
                return states
    raise ValueError(f"{folder}: the order of its flat optimizer states was not found; {remedy}")


def _experts_apart(args: Mapping[str, Any], tensor: int) -> bool:
    """Whether experts have buffers of their own: they are cut over other ranks than the rest."""
    ranks, cut = args.get("expert_model_parallel_size") or 1, args.get("expert_tensor_parallel_size") or tensor
    return args.get("num_experts") is not None and (ranks, cut) != (1, tensor)


def _coordinates(rank: int, size: int) -> Coordinates:
    return {"tp": (rank, size), "expert-tp": (rank, size)}


def _numbers(key: str) -> tuple[int, ...]:
    match = _BUCKET.fullmatch(key)
    return tuple(map(int, match.groups()[:3])) if match else ()


def _of_stage(model: Model, stage: int, stages: int, order: Sequence[str]) -> list[str]:
    """A stage's parameters in the order of its model; layers are divided evenly."""
    layers = 1 + max(layer_of(name) or 0 for name in model.weights)
    own = range(stage * layers // stages, (stage + 1) * layers // stages)
    here = [name for name in model.weights if _is_of_stage(name, own, stage, stages)]
    tied = not model.network.get("untie_embeddings_and_output_weights")
    copy = ["embedding.word_embeddings.weight"] if tied and stage == stages - 1 > 0 else []
    return [*in_order(here, order), *copy]


def _is_of_stage(name: str, own: range, stage: int, stages: int) -> bool:
    layer = layer_of(name)
    if layer is not None:
        return layer in own
    return stage == (0 if name.startswith("embedding.") else stages - 1)


def _rank_states(
    buckets: Mapping[str, list[Assembled]], names: Sequence[str], rank: int, size: int, model: Model
) -> dict[str, dict[str, LazyTensor]] | None:
    """A rank's states by name; none if the parameters do not fill the buckets."""
    gated = cuts.is_gated(model.network)
    shapes = {n: place(cuts.spec_of(n, model.weights[n].shape, gated), _coordinates(rank, size)).shape for n in names}
    found: dict[str, dict[str, LazyTensor]] = {}
    for state, flat in buckets.items():
        spots = list(_spots([shapes[name] for name in reversed(names)], [one.shape[0] for one in flat]))
        if len(spots) != len(names):
            return None
        found[state] = {
            name: flat[bucket].part(Box((first,), (prod(shapes[name]),), (0,))).reshaped(shapes[name])
            for name, (bucket, first) in zip(reversed(names), spots, strict=True)
        }
    return found


def _spots(shapes: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(bucket, first entry) of each parameter."""
    bucket, at = 0, 0
    for shape in shapes:
        at = -(-at // ALIGNMENT) * ALIGNMENT
        if at + prod(shape) > lengths[bucket]:
            bucket, at = bucket + 1, 0
        if bucket == len(lengths) or prod(shape) > lengths[bucket]:
            return
        yield bucket, at
        at += prod(shape)


def _merged(
    parts: Sequence[dict[str, dict[str, LazyTensor]]], size: int, model: Model
) -> dict[str, dict[str, LazyTensor]]:
    """Ranks' states put together; rank r is tensor-parallel rank r mod `size`."""
    gated = cuts.is_gated(model.network)
    merged: dict[str, dict[str, LazyTensor]] = {}
    for state in parts[0]:
        merged[state] = {}
        for name, weight in model.weights.items():
            if cuts.BUFFERS.fullmatch(name):
                continue
            spec = cuts.spec_of(name, weight.shape, gated)
            held = [(rank % size, part[state][name]) for rank, part in enumerate(parts) if name in part[state]]
            first = {rank if spec.cuts else 0: tensor for rank, tensor in reversed(held)}
            pieces = [(box, t) for r, t in first.items() for box in place(spec, _coordinates(r, size)).boxes]
            merged[state][name] = first[0] if len(pieces) == 1 else assembled(weight.shape, first[0].dtype, pieces)
    return merged


def _rounds_to_weights(states: Mapping[str, Mapping[str, LazyTensor]], model: Model) -> bool:
    """Whether the float32 values are those of the weights."""
    for name, main in states["main_param"].items():
        weight = model.weights[name]
        if weight.dtype == "bfloat16":
            bits = main.read().view(np.uint32).astype(np.uint64)
            rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            if not np.array_equal(from_bfloat16(rounded), weight.widened()):
                return False
        elif not np.array_equal(main.read().astype(weight.read().dtype), weight.read()):
            return False
    return True
