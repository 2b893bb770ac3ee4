"""The optimizer's state in a rank's files: numbered through the parameter groups, or flat in the order of memory."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.convert.megatron.shards import BUFFERS, RankFile
from parallel_core.checkpoint.convert.model import HYPERPARAMETERS
from parallel_core.checkpoint.lazy import LazyTensor, concatenated, rounds_to
from parallel_core.checkpoint.torch_files.archive import ArchivedTensor, read_archive
from parallel_core.config.optimizer import RULES
from parallel_core.optimizer import MAIN_PARAM

DISTRIBUTED = "distrib_optim.pt"
SCALER_TRACKERS = ("growth_tracker", "hysteresis_tracker")
OURS = {name: name for rule in RULES.values() for name in rule.megatrons_states} | dict.fromkeys(
    ("param", "fp32_param"), MAIN_PARAM
)
"""Megatron's name of a state -> ours."""

ALIGNMENT = 64
"""A parameter begins in flat memory at a multiple of so many elements."""

REMEDY = "leave the optimizer out by --no-load-optim"

States = dict[str, dict[str, LazyTensor]]


def rank_states(file: RankFile, names: Sequence[Sequence[str]]) -> tuple[int, States]:
    """(steps, state -> parameter -> this rank's part) of a rank's file. names: for each chunk of the file the global
    names of its tensors, in their order. (0, empty) where the file has no optimizer and no file DISTRIBUTED lies beside
    it. Raises ValueError if states and parameters do not fit."""
    if (file.path.parent / DISTRIBUTED).is_file():
        return steps_of(file.content), _distributed(file, names)
    chained = file.content.get("optimizer")
    if not chained:
        return 0, {}
    parameters = {
        name: tensor
        for chunk, ours in zip(file.chunks, names, strict=True)
        for name, tensor in zip(ours, chunk.values(), strict=True)
        if not BUFFERS.fullmatch(name)
    }
    found: States = defaultdict(dict)
    for one in _chain(chained):
        for state, name, tensor in _numbered(one, parameters, file.path):
            found[state][name] = tensor
    return steps_of(file.content), dict(found)


def _chain(optimizer: Any) -> list[Mapping[str, Any]]:
    """A list of the optimizers in a chained one (first that of all parameters but experts', then the experts'); of one
    that is not chained, a list with it alone."""
    if isinstance(optimizer, list):
        return optimizer
    if optimizer and all(isinstance(key, int) for key in optimizer):
        return list(optimizer.values())
    return [optimizer]


def _numbered(
    one: Mapping[str, Any], parameters: Mapping[str, LazyTensor], path: Path
) -> Iterator[tuple[str, str, LazyTensor]]:
    """(state, parameter, values) of an optimizer whose states are numbered. Float32 values of 16-bit weights lie in a
    list for each group. Raises ValueError naming `path` if numbers, shapes and parameters do not fit."""
    inner = one.get("optimizer", one)
    main = one.get("fp32_from_fp16_params")
    for number, group in enumerate(inner["param_groups"]):
        members = [name for name, tensor in parameters.items() if _is_in(group, name, tensor)]
        if len(members) != len(group["params"]):
            raise ValueError(
                f"{path}: group {number} of its optimizer has {len(group['params'])} parameters, {len(members)} of the "
                f"model belong there; {REMEDY}"
            )
        for place, (index, name) in enumerate(zip(group["params"], members, strict=True)):
            states = {key: value for key, value in inner["state"].get(index, {}).items() if key in OURS}
            if main is not None:
                states["param"] = main[number][place]
            for key, value in states.items():
                if value.shape != parameters[name].shape:
                    raise ValueError(
                        f"{path}: {key} of {name} is {list(value.shape)}, not {list(parameters[name].shape)}"
                    )
                yield OURS[key], name, value


def _is_in(group: Mapping[str, Any], name: str, tensor: LazyTensor) -> bool:
    """Whether a parameter belongs to a parameter group: both with or both without weight decay, both of experts or both
    not."""
    is_expert = bool(group.get("is_expert_parallel"))
    return is_decayed(name, tensor) == (group.get("wd_mult", 1.0) != 0) and is_of_expert(name) == is_expert


def is_decayed(name: str, tensor: LazyTensor) -> bool:
    """Whether weight decay acts on a parameter by Megatron's rule: on all but biases and tensors of fewer than two
    axes."""
    return len(tensor.shape) > 1 and not name.endswith(".bias")


def is_of_expert(name: str) -> bool:
    """Whether a parameter of this name is one of routed experts (not of shared ones)."""
    return ".experts." in name


def hyperparameters_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Those of Adam's hyperparameters (HYPERPARAMETERS) that the first parameter group of a rank's file has; empty
    without a group."""
    for one in _chain(content.get("optimizer") or []):
        for group in one.get("optimizer", one).get("param_groups") or ():
            return {name: group[name] for name in HYPERPARAMETERS if name in group}
    return {}


def steps_of(content: Mapping[str, Any]) -> int:
    """The steps in a rank's file, of the first of its optimizers that says them: in the entry for all parameters, else
    in a parameter's state, else in a group; where none does, the iteration, 0 without one."""
    for one in _chain(content.get("optimizer") or []):
        inner = one.get("optimizer", one)
        state = inner.get("state", {})
        for step in (state.get("common_step"), *(entry.get("step") for entry in _entries(inner))):
            if step is not None:
                return int(step.read()) if isinstance(step, LazyTensor) else int(step)
    iteration: int = content.get("iteration", 0)
    return iteration


def loss_scaler_of(content: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    """The state of a dynamic loss scaler in a rank's file, as `LossScaler.state_dict` has it; None without one, or for
    a constant scale. Raises ValueError, naming the file `path`, for a state with a scale that lacks one of
    SCALER_TRACKERS."""
    for one in _chain(content.get("optimizer") or []):
        state = one.get("grad_scaler") or {}
        if "scale" in state:
            if lacking := [name for name in SCALER_TRACKERS if name not in state]:
                raise ValueError(f"{path}: the optimizer's grad_scaler has no {lacking[0]}; save the checkpoint again")
            scale = state["scale"]
            value = float(scale.read().reshape(-1)[0]) if isinstance(scale, LazyTensor) else float(scale)
            return {"kind": "dynamic", "scale": value} | {name: int(state[name]) for name in SCALER_TRACKERS}
    return None


def _entries(inner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = (*inner.get("state", {}).values(), *inner.get("param_groups", ()))
    return [entry for entry in entries if isinstance(entry, dict)]


def _distributed(file: RankFile, names: Sequence[Sequence[str]]) -> States:
    """State -> parameter -> values of the distributed optimizer's file of a rank: a parameter begins in the flat states
    where its weight begins in its storage.

    Experts have an optimizer of their own, behind that of the rest. The rest is the same on all expert ranks, and only
    the first of them has its states.
    """
    parts = _chain(read_archive(file.path.parent / DISTRIBUTED))
    found: States = defaultdict(dict)
    for place, one in enumerate(parts):
        own = [entry for entry in _stored(file, names) if len(parts) == 1 or is_of_expert(entry[0]) == (place == 1)]
        if one is None:
            continue
        buffers, storages = list(flat_buffers(one)), list(dict.fromkeys(weight.storage for _, weight in own))
        if len(storages) > len(buffers):
            raise ValueError(f"{file.path}: more memories of weights than buffers in {DISTRIBUTED}")
        for storage, states in zip(storages, buffers, strict=False):
            here = {name: weight for name, weight in own if weight.storage == storage}
            starts = _starts(here, states["param"], file.path) if "param" in states else {}
            for key, values in states.items():
                for name, weight in here.items():
                    first = starts.get(name, weight.first)
                    found[OURS[key]][name] = _cut_out(values, first, weight.shape, file.path)
    return dict(found)


def _starts(weights: Mapping[str, ArchivedTensor], main: LazyTensor, path: Path) -> dict[str, int]:
    """Parameter -> its first element in a flat state, in which buckets follow each other without the padding at their
    ends.

    In the weights' memory a parameter begins at a multiple of 64, one that begins a bucket at a multiple of 128. Where
    this does not tell whether a bucket began, the float32 values `main` do: they must round to the weight. Raises
    ValueError if none does.
    """
    starts, removed, end = {}, 0, 0
    for name, weight in sorted(weights.items(), key=lambda entry: entry[1].first):
        places = [weight.first - removed - gap for gap in _gaps(end, weight.first)]
        if len(places) > 1:
            inside = (at for at in places if at + prod(weight.shape) <= main.shape[0])
            places = [at for at in inside if rounds_to(_cut_out(main, at, weight.shape, path), weight)]
        if not places:
            raise ValueError(f"{path}: {DISTRIBUTED} beside it has no float32 value of {name}; {REMEDY}")
        starts[name] = places[0]
        removed, end = weight.first - places[0], weight.first + prod(weight.shape)
    return starts


def _gaps(end: int, first: int) -> list[int]:
    """The numbers of elements by which the gap before a parameter at `first` in memory may be shorter in the flat
    state; the parameter before it ends at `end`."""
    aligned = -(-end // ALIGNMENT) * ALIGNMENT
    if first != aligned:
        return sorted({gap for gap in (first - aligned, first - end) if gap >= 0})
    return sorted({0, first - end}) if first % (2 * ALIGNMENT) == 0 else [0]


def _stored(file: RankFile, names: Sequence[Sequence[str]]) -> Iterator[tuple[str, ArchivedTensor]]:
    """(global name, tensor) of the parameters of a rank's file, in the model's order, without buffers."""
    for chunk, ours in zip(file.chunks, names, strict=True):
        for name, weight in zip(ours, chunk.values(), strict=True):
            if not BUFFERS.fullmatch(name):
                assert isinstance(weight, ArchivedTensor)
                yield name, weight


def flat_buffers(one: Mapping[Any, Any]) -> Iterator[dict[str, LazyTensor]]:
    """For each flat buffer of a distributed optimizer, in order: Megatron's name of a state, of those in OURS -> its
    flat values, those of the buffer's buckets joined."""
    for key in sorted(key for key in one if isinstance(key, int)):
        for states in one[key].values():
            found = {name: values for name, values in states.items() if name in OURS}
            yield {name: concatenated(v) if isinstance(v, list) else v for name, v in found.items()}


def _cut_out(flat: LazyTensor, first: int, shape: tuple[int, ...], path: Path) -> LazyTensor:
    """The elements of a flat state from `first` on, in `shape`. Raises ValueError naming `path` if the state is
    shorter."""
    count = prod(shape)
    if len(flat.shape) != 1 or first + count > flat.shape[0]:
        raise ValueError(f"{path}: {DISTRIBUTED} beside it is shorter than the weights")
    return flat.run(first, count).reshaped(shape)
