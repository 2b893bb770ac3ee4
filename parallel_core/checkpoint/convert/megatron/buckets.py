"""Optimizer states of torch_dist in flat buckets, `dp_reshardable`: a rank's memory, without names.

A key has the rank (`dp_group_idx`), the buffer (`gbuf_idx`: one for each model chunk that has parameters in it), the
bucket and the state. With expert parallelism the experts' states are in buffers of their own, those of the optimizer
`chained_1`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from parallel_core.checkpoint.convert.megatron.names import ORDERS, Chunk, Order, chunks_of, expert_of, in_memory
from parallel_core.checkpoint.convert.megatron.optimizer import ALIGNMENT, OURS, REMEDY
from parallel_core.checkpoint.convert.megatron.shards import BUFFERS, Cuts, Shards, group_sizes
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import LazyTensor, rounds_to
from parallel_core.partition import chunk_layers
from parallel_core.schedules.actions import Placement
from parallel_core.sharding import Coordinates, place

_BUCKET = re.compile(
    r"(?:chained_(\d+)\.)?optimizer\.distributed\.dp_group_idx_(\d+)\.gbuf_idx_(\d+)\.dtype_\(.*\)\.bucket_idx_(\d+)\."
    r"(param|exp_avg|exp_avg_sq)"
)


_GIVEN = (
    "num_layers_per_virtual_pipeline_stage", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
)  # fmt: skip
_COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


class _Rank(NamedTuple):
    """The rank whose memory some buffers are: its number among the ranks that cut the model, for experts or for the
    rest."""

    of_experts: bool
    group: int


class _Buffer(NamedTuple):
    """State -> buckets of one model chunk on one rank, and which parameters lie in them."""

    buckets: dict[str, list[LazyTensor]]
    names: list[str]
    """Global names of the chunk's parameters, in the order of the model; in memory they lie reversed."""
    coordinates: Coordinates


States = dict[str, dict[str, LazyTensor]]


def of_buckets(tensors: Mapping[str, LazyTensor], model: Model, args: Mapping[str, Any], folder: Path) -> States:
    """State -> parameter -> whole values, from flat buckets: the parameters of a rank's chunk in reverse order, each at
    a multiple of 64 elements. tensors: key -> bucket of one state; model: with the weights of the same checkpoint;
    args: Megatron's; folder: its name is in errors.

    The order of a layer's parameters depends on the implementation of layers that saved them, such as Transformer
    Engine's. Known orders are tried in turn; the first that fits, and in which the float32 values, if they are there,
    round to the weights, is taken. Raises ValueError where none fits, or `args` does not tell the layout,
    AssertionError where by `args` the stages' layers do not add up to all.
    """
    sizes, ranks = group_sizes(args, folder), _by_rank(tensors)
    chunks = chunks_of(_layers(args, sizes, folder))
    local = args.get("transformer_impl") == "local"
    cuts = Cuts(model.settings, model.weights)
    for order in ORDERS:
        shards = Shards(folder, sizes)
        buffers = _buffers(ranks, chunks, sizes, model, order)
        if buffers is not None and all(_add(shards, one, model, cuts, order, local, folder) for one in buffers):
            try:
                states = shards.merged(cuts)
            except ValueError:
                continue
            if _is_of(states, model):
                return states
    raise ValueError(
        f"{folder}: the order of its flat optimizer states was not found: layers that are not known here, or damage, "
        f"which `python -m mapping inspect {folder} --check` would tell; {REMEDY}"
    )


def _by_rank(tensors: Mapping[str, LazyTensor]) -> dict[_Rank, list[dict[str, list[LazyTensor]]]]:
    """For each rank its buffers in order of the model chunks, each state -> its buckets in order."""
    found: dict[_Rank, dict[int, dict[str, dict[int, LazyTensor]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for key, tensor in tensors.items():
        match = _BUCKET.fullmatch(key)
        if match:
            chain, group, buffer, bucket = (int(number or 0) for number in match.groups()[:4])
            found[_Rank(chain > 0, group)][buffer][OURS[match[5]]][bucket] = tensor
    return {
        rank: [
            {state: [buckets[number] for number in sorted(buckets)] for state, buckets in buffers[number].items()}
            for number in sorted(buffers)
        ]
        for rank, buffers in found.items()
    }


def _layers(args: Mapping[str, Any], sizes: Mapping[str, int], folder: Path) -> list[list[range]]:
    """[chunk][stage]: the layers that it has, by `args`. Raises ValueError naming `folder` if these do not say it."""
    if args.get("num_layers") is None:
        raise ValueError(f"{folder}: its args do not say how layers are divided; {REMEDY}")
    parallel = SimpleNamespace(
        pipeline_model_parallel_size=sizes["pp"],
        virtual_pipeline_model_parallel_size=args.get("virtual_pipeline_model_parallel_size"),
        placement=Placement(sizes["pp"], args.get("virtual_pipeline_model_parallel_size") or 1),
        num_layer_list=None,
        offset=None,
        standalone_embedding_stage=False,
        **{name: args.get(name) for name in _GIVEN},
        **{name: bool(args.get(name)) for name in _COUNTED},
    )
    return chunk_layers(SimpleNamespace(num_layers=args["num_layers"]), parallel)


def _buffers(
    ranks: Mapping[_Rank, list[dict[str, list[LazyTensor]]]],
    chunks: list[list[Chunk]],
    sizes: Mapping[str, int],
    model: Model,
    order: Order,
) -> list[_Buffer] | None:
    """Each rank's buffers with the parameters that lie in them by this order; None if a rank has more or fewer buffers
    than chunks with parameters."""
    found = []
    for rank, buffers in ranks.items():
        stage, coordinates, own = _place(rank, sizes, model)
        names = [
            [
                name
                for name, _ in chunk[stage].parameters(model.weights, model.network, order)
                if not BUFFERS.fullmatch(name) and _is_in(name, rank, own, sizes)
            ]
            for chunk in chunks
        ]
        names = [one for one in names if one]
        if len(names) != len(buffers):
            return None
        found += [_Buffer(*one, coordinates) for one in zip(buffers, names, strict=True)]
    return found


def _place(rank: _Rank, sizes: Mapping[str, int], model: Model) -> tuple[int, Coordinates, range]:
    """(stage, coordinates in the groups that cut parameters, numbers of the experts that it holds) of a rank."""
    tensor = sizes["expert-tp" if rank.of_experts else "tp"]
    others, own = divmod(rank.group, tensor)
    coordinates = {kind: (own % sizes[kind], sizes[kind]) for kind in ("tp", "expert-tp")}
    if not rank.of_experts:
        return others % sizes["pp"], coordinates, range(0)
    stage, expert = divmod(others, sizes["ep"])
    held = (1 + max((expert_of(name) or 0 for name in model.weights), default=0)) // sizes["ep"]
    return stage % sizes["pp"], coordinates, range(expert * held, (expert + 1) * held)


def _is_in(name: str, rank: _Rank, own: range, sizes: Mapping[str, int]) -> bool:
    expert = expert_of(name) if sizes["ep"] > 1 else None
    return (expert in own) if rank.of_experts else expert is None


def _add(shards: Shards, buffer: _Buffer, model: Model, cuts: Cuts, order: Order, local: bool, folder: Path) -> bool:
    """Cut a buffer into its parameters' states and add them to `shards`; false if they do not fill it. local: by the
    cuts of Megatron's local implementation."""
    shapes = {
        name: place(cuts.of(name, model.weights[name].shape, local), buffer.coordinates).shape for name in buffer.names
    }
    runs = in_memory(buffer.names, order)
    for state, flat in buffer.buckets.items():
        sizes = [sum(prod(shapes[name]) for name in run) for run in reversed(runs)]
        spots = list(_spots(sizes, [one.shape[0] for one in flat]))
        if len(spots) != len(runs):
            return False
        found: dict[str, LazyTensor] = {}
        for run, (bucket, first) in zip(reversed(runs), spots, strict=True):
            for name in run:
                count, shape = prod(shapes[name]), shapes[name]
                values = flat[bucket].run(first, count)
                fused = order.fused and len(run) > 1
                found[name] = values.reshaped(shape[::-1]).transposed() if fused else values.reshaped(shape)
                first += count
        shards.add(state, folder, buffer.coordinates, found)
    return True


def _spots(sizes: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(bucket, first element) of each parameter of these sizes in buckets of these lengths; fewer if they do not fill
    the buckets."""
    bucket, at = 0, 0
    for size in sizes:
        first = -(-at // ALIGNMENT) * ALIGNMENT
        if first + size > lengths[bucket]:
            if lengths[bucket] not in (at, first):
                return
            bucket, first = bucket + 1, 0
        if bucket == len(lengths) or size > lengths[bucket]:
            return
        yield bucket, first
        at = first + size


def _is_of(states: States, model: Model) -> bool:
    """Whether `states` has every parameter of the model, and its float32 values round to the weights."""
    needed = {name for name in model.weights if not BUFFERS.fullmatch(name)}
    main = states.get("main_param", {})
    complete = all(tensors.keys() == needed for tensors in states.values())
    return complete and all(rounds_to(tensor, model.weights[name]) for name, tensor in main.items())
