"""Megatron's `--ckpt-format torch`: a file for each rank of a replica, `mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.convert.megatron.args import args_in, position_of, settings_of
from parallel_core.checkpoint.convert.megatron.names import apart, layer_of, shifted
from parallel_core.checkpoint.convert.megatron.optimizer import hyperparameters_of, loss_scaler_of, rank_states
from parallel_core.checkpoint.convert.megatron.out_norm import as_ours
from parallel_core.checkpoint.convert.megatron.shards import SIZES, Cuts, RankFile, Shards, group_sizes
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.sharding import Coordinates

FILE = "model_optim_rng.pt"
_FOLDER = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")


def is_legacy(folder: Path) -> bool:
    """Whether a folder is a checkpoint of Megatron's `--ckpt-format torch`, of one iteration, by the names of its files
    alone."""
    return any(_FOLDER.fullmatch(path.parent.name) for path in folder.glob(f"*/{FILE}"))


def read_legacy(folder: Path, *, optimizer: bool = True) -> Model:
    """The model of a legacy checkpoint (`is_legacy`), whole tensors put together from the files of all ranks; whether
    it has all weights that its settings need is not checked. optimizer: read its states and steps too, and the scale of
    the loss. Raises ValueError if a stage or a part of a tensor is missing, if files are of different iterations, have
    parameters or settings not known here, or no checkpoint version or one below 2, or if the expert-tensor-parallel
    size does not divide the tensor-parallel one; OSError if a file cannot be opened."""
    paths = sorted(path for path in folder.glob(f"*/{FILE}") if _FOLDER.fullmatch(path.parent.name))
    contents = {path: _content(path) for path in paths}
    args = args_in(contents[paths[0]])
    sizes = _sizes_in_names(args, paths[0])
    files = [_rank_file(path, content, sizes) for path, content in contents.items()]
    _check_same_run(files, sizes)
    missing = set(range(sizes["pp"])) - {file.stage for file in files}
    if missing:
        raise ValueError(f"{folder}: files of pipeline stage(s) {sorted(missing)} are missing")
    found = settings_of(args)
    model = Model({}, found, position=position_of(contents[paths[0]], args))
    model.position.hyperparameters = hyperparameters_of(contents[paths[0]])
    model.position.loss_scaler = loss_scaler_of(contents[paths[0]], paths[0]) if optimizer else None
    shards, held = Shards(folder, sizes), (args.get("num_experts") or 0) // sizes["ep"]
    for file, layers in _with_first_layers(files):
        first = file.expert * held
        names = [[shifted(n, o, first) for n in c] for o, c in zip(layers, file.chunks, strict=True)]
        own = {n: t for c, ours in zip(file.chunks, names, strict=True) for n, t in zip(ours, c.values(), strict=True)}
        steps, states = rank_states(file, names) if optimizer else (0, {})
        model.position.optimizer_steps = max(steps, model.position.optimizer_steps)
        for state, tensors in {"": own, **states}.items():
            shards.add(state, file.path, _coordinates(file, sizes), apart(tensors, first, held))
    whole = shards.merged(Cuts(found, shards.names))
    model.weights = whole.pop("")
    model.states = whole
    return as_ours(model)


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


def _check_same_run(files: list[RankFile], sizes: Mapping[str, int]) -> None:
    """Raise ValueError if a file is of another iteration than the first, of a rank that the layout does not have, or of
    the same rank as another file."""
    first, there = files[0], dict[tuple[int, int, int], Path]()
    for file in files:
        other = there.setdefault((file.tensor, file.stage, file.expert), file.path)
        if other != file.path:
            raise ValueError(f"{file.path}: is of the same rank as {other}; delete the one that is not of it")
        then, now = (one.content.get("iteration") for one in (first, file))
        if then != now:
            raise ValueError(
                f"{file.path}: is of iteration {now}, {first.path} of {then}: files of two checkpoints; restore one"
            )
        for kind, rank in (("tp", file.tensor), ("pp", file.stage), ("ep", file.expert)):
            if rank >= sizes[kind]:
                raise ValueError(
                    f"{file.path}: is of rank {rank}, but its args have {SIZES[kind]} {sizes[kind]}: a file of another "
                    f"layout; delete what is not of this checkpoint"
                )


def _sizes_in_names(args: Mapping[str, Any], path: Path) -> dict[str, int]:
    sizes = group_sizes(args, path)
    if sizes["tp"] % sizes["expert-tp"]:
        raise ValueError(
            f"{path}: --expert-tensor-parallel-size {sizes['expert-tp']} does not divide --tensor-model-parallel-size "
            f"{sizes['tp']}: the files' names do not say which part of the experts each has"
        )
    return sizes


def _rank_file(path: Path, content: Mapping[str, Any], sizes: Mapping[str, int]) -> RankFile:
    """A rank's file, with its ranks from the name of its folder, which has the stage and the expert rank only where
    there are several. Raises ValueError if it has another count of numbers than `sizes` ask for."""
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


def _with_first_layers(files: list[RankFile]) -> Iterator[tuple[RankFile, list[int]]]:
    """(file, global number of the first layer of each of its chunks). Chunk c of stage s is number c p + s in depth of
    p stages. Layers are counted, because splits can be uneven."""
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
        yield file, [firsts[number, file.stage] for number in range(len(file.chunks))]


def _coordinates(file: RankFile, sizes: Mapping[str, int]) -> Coordinates:
    expert_tensor = sizes["expert-tp"]
    return {"tp": (file.tensor, sizes["tp"]), "expert-tp": (file.tensor % expert_tensor, expert_tensor)}
