"""Megatron's cuts of each parameter, a rank's file, and whole tensors made of the ranks' parts."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.blocks import model_chunks
from parallel_core.checkpoint.convert.megatron.names import spellings
from parallel_core.checkpoint.convert.model import VOCABULARY
from parallel_core.checkpoint.convert.parameters import check_counts
from parallel_core.checkpoint.lazy import LazyTensor, assembled, same_bits
from parallel_core.config.serialise import config_of
from parallel_core.sharding import Coordinates, Cut, ShardSpec, place

BUFFERS = re.compile(r".*\.router\.expert_bias$")
"""Tensors of a model that no optimizer has."""

COPY = "output_layer.weight"
"""Name of the copy of the word embedding, in a tied model's last stage."""


_CHUNK = re.compile(r"model(\d*)")


@dataclass(frozen=True)
class RankFile:
    """One rank's file: its path, its content, and the tensor-parallel rank, stage and expert-parallel rank of it."""

    path: Path
    content: Mapping[str, Any]
    tensor: int
    stage: int
    expert: int

    @cached_property
    def chunks(self) -> list[dict[str, LazyTensor]]:
        """A list with, for each model chunk of the file in order of the chunks' numbers, our name with local numbers ->
        tensor. Raises ValueError if it has no chunk, or a dictionary in one is there twice."""
        keys = sorted((key for key in self.content if _CHUNK.fullmatch(str(key))), key=lambda key: int(key[5:] or 0))
        if not keys:
            raise ValueError(f"{self.path}: it holds no model")
        chunks = []
        for key in keys:
            tensors = dict(_flat(self.content[key], set()))
            names = spellings(tensors)
            chunks.append({ours: tensors[name] for name, ours in names.items()})
        return chunks


def _flat(value: Any, seen: set[int], start: str = "") -> Iterator[tuple[str, LazyTensor]]:
    """(keys joined by ".", tensor) of nested dictionaries. Raises ValueError for a dictionary that is there twice
    (`seen`: their ids), since it could contain itself."""
    for key, entry in value.items():
        name = f"{start}.{key}" if start else str(key)
        if isinstance(entry, LazyTensor):
            yield name, entry
        elif isinstance(entry, dict):
            if id(entry) in seen:
                raise ValueError(f"{name}: a dictionary that is there twice")
            seen.add(id(entry))
            yield from _flat(entry, seen, name)


def _even(spec: ShardSpec) -> ShardSpec:
    """The spec without padding: in Megatron's files all ranks' parts have one length."""
    return replace(spec, cuts=tuple(replace(cut, unit=0) for cut in spec.cuts))


class Cuts:
    """The cuts of the parameters of the network that `settings`, with a section `model_config`, describe. names: the
    weights that the files have. Raises ValueError for settings that do not go together, and for more layers or experts
    than there are names."""

    def __init__(self, settings: Mapping[str, Any], names: Collection[str]) -> None:
        check_counts(settings, len(names))
        length = {"vocab_size": 1, "unpadded_vocab_size": 1}  # the files give the length of tables
        network = {**settings["model_config"], **length, "params_dtype": "float32"}
        model = config_of({**settings, "model_config": network}).model_config
        chunks = model_chunks(model)
        self._specs = {name: _even(spec.shard) for chunk in chunks for name, spec in chunk.parameters().items()}
        self.is_tied = not model.untie_embeddings_and_output_weights
        latent = model.multi_latent_attention
        down = {"linear_q_down_proj": latent.q_lora_rank or 0}
        down["linear_kv_down_proj"] = latent.kv_lora_rank + latent.qk_pos_emb_head_dim
        self._down_rows = down if latent.enabled else {}

    def is_local(self, name: str, held: tuple[int, ...]) -> bool:
        """Whether `name` is a down projection of latent attention, and a rank that holds the shape `held` of it has a
        part of its rows, as in Megatron's local implementation."""
        return held[0] < self._down_rows.get(name.split(".")[-2], 0)

    def of(self, name: str, shape: tuple[int, ...], local: bool = False) -> ShardSpec:
        """The cut of the parameter `name`, whose whole shape is `shape`. local: by Megatron's local implementation,
        which cuts latent attention's down projections, too. Routers' expert biases are not cut; a tied
        model's output_layer.weight is cut as the embedding. Raises ValueError for another name that the network does
        not have."""
        if BUFFERS.fullmatch(name):
            return ShardSpec(shape=shape, name=name)
        spec = self._specs.get(VOCABULARY[0] if self.is_tied and name == COPY else name)
        if spec is None:
            raise ValueError(f"{name}: not a parameter of its network, so how it is cut is not known")
        is_cut_too = local and name.split(".")[-2] in self._down_rows
        return ShardSpec(shape=shape, name=name, cuts=(Cut(0),) if is_cut_too else spec.cuts, replicas=spec.replicas)

    def whole_shape(
        self, name: str, held: tuple[int, ...], sizes: Mapping[str, int], local: bool = False
    ) -> tuple[int, ...]:
        """The shape of the whole parameter `name`, of which a rank holds the shape `held`. sizes: kind of a group ->
        number of its ranks; local: whether down projections are cut, too, as in Megatron's local implementation."""
        shape = list(held)
        for cut in self.of(name, held, local).cuts:
            shape[cut.axis] *= sizes.get(cut.over, 1)
        return tuple(shape)


SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "expert-tp": "expert_tensor_parallel_size",
}
"""Kind of a group -> the entry of `args` with the number of its ranks."""


def group_sizes(args: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Kind of a group -> number of its ranks, by `args`: 1 where the entry (`SIZES`) is missing, None, 0 or empty; only
    experts' tensor parallelism, if its entry is missing or None, is as large as tensor parallelism. Raises ValueError
    naming `path` for any other entry that is no whole number from 1 on."""
    sizes = {kind: args.get(name) or 1 for kind, name in SIZES.items()}
    wrong = [SIZES[kind] for kind, size in sizes.items() if type(size) is not int or size < 1]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]} in its args is {args.get(wrong[0])!r}, not a number of ranks")
    if args.get("expert_tensor_parallel_size") is None:
        sizes["expert-tp"] = sizes["tp"]
    return sizes


class Part(NamedTuple):
    """The part of a tensor that one rank holds, with the rank's file and its coordinates."""

    path: Path
    coordinates: Coordinates
    tensor: LazyTensor


class Shards:
    """The parts of the tensors of a folder's files, collected rank by rank, to be put together. folder: its name is in
    errors. sizes: kind of a group -> number of its ranks, as `group_sizes`."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        self._folder, self._sizes = folder, sizes
        self._found: dict[str, dict[str, list[Part]]] = defaultdict(lambda: defaultdict(list))

    def add(self, state: str, path: Path, coordinates: Coordinates, tensors: Mapping[str, LazyTensor]) -> None:
        """Add one rank's tensors, by name, of one state of the optimizer, or of the weights (`state` ""). path: its
        name is in errors; coordinates: kind of a group -> (the rank's number in it, its size)."""
        for name, tensor in tensors.items():
            self._found[state][name].append(Part(path, coordinates, tensor))

    @property
    def names(self) -> list[str]:
        """Names of the weights that were added."""
        return list(self._found[""])

    def merged(self, cuts: Cuts) -> dict[str, dict[str, LazyTensor]]:
        """State ("" the weights) -> name -> whole tensor; of a part that several ranks hold, the first one's is taken.
        A tied model's copy of the embedding is left out. Raises ValueError naming a tensor that the network does
        not have, one of which a part is missing or a part that is taken has another shape or type, or the copy if it
        differs."""
        whole = {
            state: {
                name: self._whole(name, parts, cuts)
                for name, parts in tensors.items()
                if not (cuts.is_tied and name == COPY and state)  # only the copy's weight is compared
            }
            for state, tensors in self._found.items()
        }
        copy = whole.get("", {}).pop(COPY, None) if cuts.is_tied else None
        if copy is not None and not same_bits(copy, whole[""][VOCABULARY[0]]):
            raise ValueError(f"{self._folder}: untie_embeddings_and_output_weights is false, but {COPY} is no copy")
        return whole

    def _whole(self, name: str, found: list[Part], cuts: Cuts) -> LazyTensor:
        first = found[0].tensor
        local = cuts.is_local(name, first.shape)
        shape = cuts.whole_shape(name, first.shape, self._sizes, local)
        spec = cuts.of(name, shape, local)
        parts: dict[tuple[int, ...], Part] = {}
        for part in found:
            parts.setdefault(tuple(part.coordinates[cut.over][0] for cut in spec.cuts), part)
        pieces = []
        for path, coordinates, tensor in parts.values():
            held = place(spec, coordinates)
            if held.shape != tensor.shape or tensor.dtype != first.dtype:
                raise ValueError(f"{path}: {name} is {list(tensor.shape)} {tensor.dtype}, {list(held.shape)} fits")
            pieces += [(box, tensor) for box in held.boxes]
        if len(pieces) == 1 and first.shape == shape:
            return first
        try:
            return assembled(shape, first.dtype, pieces)
        except ValueError as error:
            raise ValueError(f"{name}: not whole in {self._folder}: {error}") from error
