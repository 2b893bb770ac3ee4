"""The optimizer's state in a rank's files: by number through the parameter groups, or flat in the order of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol

from parallel_core.checkpoint.convert.megatron.cuts import BUFFERS
from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.torch_files.archive import StoredTensor, read_archive
from parallel_core.sharding import Box

DISTRIBUTED = "distrib_optim.pt"
OURS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "param": "main_param", "fp32_param": "main_param"}
"""Megatron's name of a state -> ours."""

States = dict[str, dict[str, LazyTensor]]


class RankFile(Protocol):
    """What is read of a rank."""

    @property
    def path(self) -> Path: ...
    @property
    def content(self) -> Mapping[str, Any]: ...
    @property
    def chunks(self) -> list[dict[str, LazyTensor]]: ...


def rank_states(file: RankFile, names: Sequence[Sequence[str]]) -> tuple[int, States]:
    """Steps, and state -> parameter -> this rank's part; `names` are the global names of the parameters of each chunk.

    Empty if the file has no optimizer. Raises ValueError if numbers and parameters do not fit.
    """
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
    """The optimizers of a chained one: of experts and of the rest."""
    if isinstance(optimizer, list):
        return optimizer
    if optimizer and all(isinstance(key, int) for key in optimizer):
        return list(optimizer.values())
    return [optimizer]


def _numbered(
    one: Mapping[str, Any], parameters: Mapping[str, LazyTensor], path: Path
) -> Iterator[tuple[str, str, LazyTensor]]:
    """(state, parameter, values). 16-bit weights have float32 values, in a list for each group."""
    inner = one.get("optimizer", one)
    main = one.get("fp32_from_fp16_params")
    for number, group in enumerate(inner["param_groups"]):
        members = [name for name, tensor in parameters.items() if _is_in(group, name, tensor)]
        if len(members) != len(group["params"]):
            raise ValueError(
                f"{path}: group {number} of its optimizer has {len(group['params'])} parameters, {len(members)} of the "
                f"model belong there; leave the optimizer out by --no-load-optim"
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
    """Whether a parameter belongs to a group: with or without weight decay, experts or not."""
    is_expert = bool(group.get("is_expert_parallel"))
    return is_decayed(name, tensor) == (group.get("wd_mult", 1.0) != 0) and is_of_expert(name) == is_expert


def is_decayed(name: str, tensor: LazyTensor) -> bool:
    """Whether weight decay acts on a parameter."""
    return len(tensor.shape) > 1 and not name.endswith(".bias")


def is_of_expert(name: str) -> bool:
    """Whether a parameter is one of the experts', which have an optimizer of their own."""
    return ".experts." in name


def hyperparameters_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Adam's, of the first group."""
    for one in _chain(content.get("optimizer") or []):
        for group in one.get("optimizer", one).get("param_groups") or ():
            return {name: group[name] for name in ("betas", "eps", "weight_decay") if name in group}
    return {}


def steps_of(content: Mapping[str, Any]) -> int:
    """Steps of Adam: in each parameter's state, for all at once, in the groups; where nothing says it, one in each
    iteration."""
    for one in _chain(content.get("optimizer") or []):
        inner = one.get("optimizer", one)
        state = inner.get("state", {})
        for step in (state.get("common_step"), *(entry.get("step") for entry in _entries(inner))):
            if step is not None:
                return int(step.read()) if isinstance(step, LazyTensor) else int(step)
    iteration: int = content.get("iteration", 0)
    return iteration


def _entries(inner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = (*inner.get("state", {}).values(), *inner.get("param_groups", ()))
    return [entry for entry in entries if isinstance(entry, dict)]


def _distributed(file: RankFile, names: Sequence[Sequence[str]]) -> States:
    """Of the distributed optimizer: a parameter begins in the flat states where its weight begins in its storage.

    Experts have an optimizer of their own, behind that of the rest. The rest is the same on all expert ranks, and only
    the first of them has its states.
    """
    parts = _chain(read_archive(file.path.parent / DISTRIBUTED))
    found: States = defaultdict(dict)
    for place, one in enumerate(parts):
        own = [entry for entry in _stored(file, names) if len(parts) == 1 or is_of_expert(entry[0]) == (place == 1)]
        if one is None:
            continue
        buffers, storages = list(_buffers(one)), list(dict.fromkeys(weight.storage for _, weight in own))
        if len(storages) > len(buffers):
            raise ValueError(f"{file.path}: more memories of weights than buffers in {DISTRIBUTED}")
        for name, weight in own:
            for key, values in buffers[storages.index(weight.storage)].items():
                found[OURS[key]][name] = _cut_out(values, weight.first, weight.shape, file.path)
    return dict(found)


def _stored(file: RankFile, names: Sequence[Sequence[str]]) -> Iterator[tuple[str, StoredTensor]]:
    """Parameters by their global names, in the model's order."""
    for chunk, ours in zip(file.chunks, names, strict=True):
        for name, weight in zip(ours, chunk.values(), strict=True):
            if not BUFFERS.fullmatch(name):
                assert isinstance(weight, StoredTensor)
                yield name, weight


def _buffers(one: Mapping[Any, Any]) -> Iterator[dict[str, LazyTensor]]:
    """The flat states of each buffer, in order."""
    for key in sorted(key for key in one if isinstance(key, int)):
        for states in one[key].values():
            yield {name: values for name, values in states.items() if name in OURS}


def _cut_out(flat: LazyTensor, first: int, shape: tuple[int, ...], path: Path) -> LazyTensor:
    count = prod(shape)
    if len(flat.shape) != 1 or first + count > flat.shape[0]:
        raise ValueError(f"{path}: {DISTRIBUTED} beside it is shorter than the weights")
    return flat.part(Box((first,), (count,), (0,))).reshaped(shape)
