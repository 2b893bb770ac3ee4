"""Megatron's `--ckpt-format torch`: a file for each rank of a replica, `mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.convert.megatron import cuts
from parallel_core.checkpoint.convert.megatron.args import args_in, position_of, settings_of
from parallel_core.checkpoint.convert.megatron.names import expert_of, layer_of, shifted, spellings
from parallel_core.checkpoint.convert.megatron.optimizer import hyperparameters_of, rank_states
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import LazyTensor, assembled
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.sharding import Coordinates, place

FILE = "model_optim_rng.pt"
_FOLDER = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_CHUNK = re.compile(r"model(\d*)")
_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "expert-tp": "expert_tensor_parallel_size",
}


@dataclass(frozen=True)
class RankFile:
    """One rank's file, and where the rank is."""

    path: Path
    content: Mapping[str, Any]
    tensor: int
    stage: int
    expert: int

    @cached_property
    def chunks(self) -> list[dict[str, LazyTensor]]:
        """Parameters of each model chunk, in the model's order, under our spelling but with local numbers."""
        keys = sorted((key for key in self.content if _CHUNK.fullmatch(str(key))), key=lambda key: int(key[5:] or 0))
        if not keys:
            raise ValueError(f"{self.path}: it holds no model")
        chunks = []
        for key in keys:
            tensors = dict(_flat(self.content[key]))
            names = spellings(tensors)
            chunks.append({ours: tensors[name] for name, ours in names.items()})
        return chunks


def is_legacy(folder: Path) -> bool:
    """Whether a folder is such a checkpoint of one iteration."""
    return any(_FOLDER.fullmatch(path.parent.name) for path in folder.glob(f"*/{FILE}"))


def read_legacy(folder: Path, *, optimizer: bool = True) -> Model:
    """A legacy checkpoint, in whatever layout it was saved.

    Raises ValueError if files are missing, or hold what this does not know.
    """
    paths = sorted(path for path in folder.glob(f"*/{FILE}") if _FOLDER.fullmatch(path.parent.name))
    contents = {path: _content(path) for path in paths}
    args = args_in(contents[paths[0]])
    sizes = _group_sizes(args, paths[0])
    files = [_rank_file(path, content, sizes) for path, content in contents.items()]
    missing = set(range(sizes["pp"])) - {file.stage for file in files}
    if missing:
        raise ValueError(f"{folder}: files of pipeline stage(s) {sorted(missing)} are missing")
    found = settings_of(args)
    network = found["model_config"]
    model = Model({}, found, position=position_of(contents[paths[0]], args))
    model.position.hyperparameters = hyperparameters_of(contents[paths[0]])
    tied = not network.get("untie_embeddings_and_output_weights", False)
    gated = cuts.is_gated(network)
    shards = _Shards(sizes, gated, tied, cuts.rows_of_down_projections(network))
    for file, layers, experts in _with_first_numbers(files, sizes):
        for offset, chunk in zip(layers, file.chunks, strict=True):
            shards.add("", file, {shifted(name, offset, experts): tensor for name, tensor in chunk.items()})
        if optimizer:
            names = [[shifted(n, o, experts) for n in c] for o, c in zip(layers, file.chunks, strict=True)]
            steps, states = rank_states(file, names)
            model.position.optimizer_steps = max(steps, model.position.optimizer_steps)
            for state, tensors in states.items():
                shards.add(state, file, tensors)
    whole = shards.merged()
    model.weights = whole.pop("")
    model.states = whole
    return model


def _content(path: Path) -> Mapping[str, Any]:
    content = read_archive(path)
    version = content.get("checkpoint_version", 0) if isinstance(content, dict) else None
    if version is None:
        raise ValueError(f"{path}: it is no checkpoint of Megatron-LM's")
    if version < 2:
        raise ValueError(
            f"{path}: checkpoint version {version} orders query, key and value otherwise; load and save it again by a "
            f"Megatron-LM that upgrades it"
        )
    checked: Mapping[str, Any] = content
    return checked


def _group_sizes(args: Mapping[str, Any], path: Path) -> dict[str, int]:
    sizes = {kind: args.get(name) or 1 for kind, name in _SIZES.items()}
    if args.get("expert_tensor_parallel_size") is None:
        sizes["expert-tp"] = sizes["tp"]
    if sizes["tp"] % sizes["expert-tp"]:
        raise ValueError(
            f"{path}: --expert-tensor-parallel-size {sizes['expert-tp']} does not divide --tensor-model-parallel-size "
            f"{sizes['tp']}: the files' names do not say which part of the experts each has"
        )
    return sizes


def _rank_file(path: Path, content: Mapping[str, Any], sizes: Mapping[str, int]) -> RankFile:
    """Numbers of the stage and of the expert rank are in a folder's name where there are several."""
    match = _FOLDER.fullmatch(path.parent.name)
    assert match is not None
    tensor, *others = [int(number) for number in match.groups() if number is not None]
    several = [kind for kind in ("pp", "ep") if sizes[kind] > 1]
    if len(others) != len(several):
        raise ValueError(
            f"{path.parent}: its name has {len(others)} number(s) after the tensor-parallel rank; by the sizes in its "
            f"args there should be {len(several)}"
        )
    numbers = dict(zip(several, others, strict=True))
    return RankFile(path, content, tensor, numbers.get("pp", 0), numbers.get("ep", 0))


def _flat(value: Any, start: str = "") -> Iterator[tuple[str, LazyTensor]]:
    """Tensors of nested dictionaries by their joined keys."""
    for key, entry in value.items():
        name = f"{start}.{key}" if start else str(key)
        if isinstance(entry, LazyTensor):
            yield name, entry
        elif isinstance(entry, dict):
            yield from _flat(entry, name)


def _with_first_numbers(files: list[RankFile], sizes: Mapping[str, int]) -> Iterator[tuple[RankFile, list[int], int]]:
    """Each file with the number of the first layer of each of its chunks, and of its first expert.

    Chunk c of stage s is number c p + s in depth of p stages. Layers are counted, because splits can be uneven.
    """
    counts: dict[tuple[int, int], int] = {}
    for file in files:
        for number, chunk in enumerate(file.chunks):
            own = [layer for layer in map(layer_of, chunk) if layer is not None]
            counts[number, file.stage] = 1 + max(own, default=-1)
    firsts: dict[tuple[int, int], int] = {}
    total = 0
    for place_in_depth in sorted(counts):
        firsts[place_in_depth] = total
        total += counts[place_in_depth]
    for file in files:
        experts = {expert_of(name) for chunk in file.chunks for name in chunk} - {None}
        yield file, [firsts[number, file.stage] for number in range(len(file.chunks))], file.expert * len(experts)


class _Shards:
    """Ranks' parts of tensors, put together by how each is cut."""

    def __init__(self, sizes: Mapping[str, int], gated: bool, tied: bool, down_rows: Mapping[str, int]) -> None:
        self._sizes, self._gated, self._tied, self._down_rows = sizes, gated, tied, down_rows
        self._found: dict[str, dict[str, dict[tuple[int, ...], tuple[RankFile, LazyTensor]]]] = defaultdict(dict)

    def add(self, state: str, file: RankFile, tensors: Mapping[str, LazyTensor]) -> None:
        """One rank's tensors of one kind: "" the weights."""
        for name, tensor in tensors.items():
            if self._tied and name == "output_layer.weight":
                continue  # a copy of the word embedding
            spec = cuts.spec_of(name, tensor.shape, self._gated, self._is_local(name, tensor.shape))
            key = tuple(self._coordinates(file)[cut.over][0] for cut in spec.cuts)
            self._found[state].setdefault(name, {}).setdefault(key, (file, tensor))

    def _is_local(self, name: str, held: tuple[int, ...]) -> bool:
        """Whether a rank holds a part of a down projection's rows."""
        linear = name.split(".")[-2]
        return held[0] < self._down_rows.get(linear, 0)

    def _coordinates(self, file: RankFile) -> Coordinates:
        expert_tensor = file.tensor % self._sizes["expert-tp"]
        return {"tp": (file.tensor, self._sizes["tp"]), "expert-tp": (expert_tensor, self._sizes["expert-tp"])}

    def merged(self) -> dict[str, dict[str, LazyTensor]]:
        """Whole tensors. Raises ValueError naming one of which a part is missing."""
        return {
            state: {name: self._whole(name, list(parts.values())) for name, parts in tensors.items()}
            for state, tensors in self._found.items()
        }

    def _whole(self, name: str, parts: list[tuple[RankFile, LazyTensor]]) -> LazyTensor:
        first = parts[0][1]
        local = self._is_local(name, first.shape)
        shape = cuts.whole_shape(name, first.shape, self._sizes, self._gated, local)
        spec = cuts.spec_of(name, shape, self._gated, local)
        pieces = []
        for file, tensor in parts:
            held = place(spec, self._coordinates(file))
            if held.shape != tensor.shape or tensor.dtype != first.dtype:
                raise ValueError(f"{file.path}: {name} is {list(tensor.shape)} {tensor.dtype}, {list(held.shape)} fits")
            pieces += [(box, tensor) for box in held.boxes]
        if len(pieces) == 1:
            return first
        try:
            return assembled(shape, first.dtype, pieces)
        except ValueError as error:
            raise ValueError(f"{name}: not whole in {parts[0][0].path.parents[1]}: {error}") from error
