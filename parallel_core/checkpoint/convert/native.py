"""Our own checkpoints, read and written as a `Model`."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.model import HYPERPARAMETERS, Model, Position, in_files
from parallel_core.checkpoint.lazy import NUMPY, LazyTensor, assembled, to_bfloat16
from parallel_core.checkpoint.lock import FolderLock
from parallel_core.checkpoint.manifest import MANIFEST, Manifest, OptimizerRecord, Run, StoredTensor
from parallel_core.checkpoint.mindspore_file import open_tensors
from parallel_core.checkpoint.tensor_file import TensorFile
from parallel_core.checkpoint.writer import LocalTensor, file_name, write_manifest, write_part
from parallel_core.config import LoraConfig
from parallel_core.config.serialise import config_of, model_of, put, values_of
from parallel_core.config.tree import OF_MODEL, OPTIONS, PUBLIC
from parallel_core.config.update_rules.adam import ADAM
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import ShardSpec, place
from parallel_core.system.files import plain_file

OF_ADAPTERS = _A, _B = ".adapter.lora_a", ".adapter.lora_b"
"""Suffixes that the names of an adapter's parameters add to their linear's."""

_MOST = 4 << 30
"""The most bytes of a file, unless a single tensor has more."""


def is_native(folder: Path) -> bool:
    """Whether a folder is one of our checkpoints, of one iteration, by its file manifest.json alone."""
    return (folder / MANIFEST).is_file()


def read_native(folder: Path, *, optimizer: bool = True, merges: bool = True) -> Model:
    """The model of one of our checkpoints.

    optimizer: its state is read, too. merges: adapters, if there are any, are merged into their weights, and the
    optimizer's state, which is then that of adapters, is left out; False: adapters are weights by themselves. Raises
    ValueError if a tensor is not whole, the manifest or a file cannot be read, or a file lacks a tensor of the
    manifest or has it in another type, and as `merged` if it merges.
    """
    manifest = Manifest.read(folder)
    files = {name: open_tensors(plain_file(folder, name)) for name in manifest.files}
    tensors = {name: _whole(name, tensor, files) for name, tensor in manifest.tensors.items()}
    lora = manifest.config.get("lora_config", {})
    is_merged = merges and bool(lora.get("lora_rank"))
    record = manifest.optimizer if optimizer and not is_merged else None
    position = Position(
        manifest.iteration,
        manifest.consumed_samples,
        record.kind if record else ADAM.name,
        record.steps if record else 0,
        dict(manifest.scheduler),
        _hyperparameters(manifest.config.get("optimizer_config", {})) if record else {},
        manifest.loss_scaler if record else None,
    )
    states: dict[str, dict[str, LazyTensor]] = {}
    for name in tensors.keys() - set(manifest.weights) if record else ():
        state, _, weight = name.partition(".")
        states.setdefault(state, {})[weight] = tensors[name]
    weights = {name: tensors[name] for name in manifest.weights}
    whole = merged(weights, LoraConfig(**lora)) if is_merged else weights
    return Model(whole, model_of(manifest.config), states, position, adapters=(len(weights) - len(whole)) // 2)


def merged(weights: Mapping[str, LazyTensor], lora: LoraConfig) -> dict[str, LazyTensor]:
    """The weights without adapters that stand for `weights` with them: W + (alpha / r) B A, computed in float32 and
    rounded once to W's type. Raises ValueError for an adapter of a linear that `lora` does not name, KeyError for one
    whose B or W is missing."""
    found = {name: tensor for name, tensor in weights.items() if not name.endswith(OF_ADAPTERS)}
    for name in weights:
        if name.endswith(_A):
            linear = name.removesuffix(_A)
            sizes = lora.adapter_of(linear)
            if sizes is None:
                raise ValueError(f"{name}: --lora-target-modules {lora.target_modules} does not name its linear")
            a, b, whole = weights[name], weights[f"{linear}{_B}"], found[f"{linear}.weight"]
            change = partial(_with_adapter, a, b, sizes[1] / a.shape[0], whole)
            found[f"{linear}.weight"] = LazyTensor(whole.shape, whole.dtype, change)
    return found


def _with_adapter(a: LazyTensor, b: LazyTensor, scale: float, weight: LazyTensor) -> Array:
    values = weight.widened() + np.float32(scale) * (b.widened() @ a.widened())
    return to_bfloat16(values) if weight.dtype == "bfloat16" else values.astype(NUMPY[weight.dtype])


def _hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Adam's hyperparameters, from a manifest's section `optimizer_config`."""
    found = {name: config.get(name) for name in HYPERPARAMETERS}
    return {name: tuple(value) if name == "betas" else value for name, value in found.items() if value is not None}


def _whole(name: str, tensor: StoredTensor, files: dict[str, TensorFile]) -> LazyTensor:
    pieces = []
    for shard in tensor.shards:
        if files[shard.file].shape(name) is None:
            raise ValueError(f"{files[shard.file].path}: lacks {name}, which the manifest says is in it")
        stored = files[shard.file].tensor(name)
        if stored.dtype != tensor.dtype:
            raise ValueError(f"{files[shard.file].path}: {name} is {stored.dtype}, the manifest says {tensor.dtype}")
        pieces += [(box, stored) for box in shard.pieces]
    if len(pieces) == 1 and pieces[0][1].shape == tensor.shape:
        return pieces[0][1]
    return assembled(tensor.shape, tensor.dtype, pieces)


def write_native(model: Model, directory: Path, check: Callable[[Path], None] | None = None) -> Path:
    """Write a checkpoint into `directory`, in place of one of the same iteration, make it the latest there, and return
    its path. check: called with its folder before it is published; an error that it raises passes on. Raises ValueError
    if the settings do not go together or a tensor is of none of DTYPES, `InUse` if another process writes there. After
    an error before it is named the latest, its files are removed, as far as the system lets them be."""
    run, is_new = run_of(model), not directory.exists()
    try:
        with FolderLock(directory) as lock:
            lock.take(print)
            return _write(model, run, directory, check)
    except BaseException:
        with suppress(OSError):  # another job may have written into it meanwhile
            if is_new:
                directory.rmdir()
        raise


def _write(model: Model, run: Run, directory: Path, check: Callable[[Path], None] | None) -> Path:
    """`write_native` in a folder whose lock this process holds."""
    whole = commit.begin(directory, run.iteration)
    try:
        names: list[str] = []
        for number, part in enumerate(in_files(model.all_tensors(), _MOST)):
            names.append(file_name(0, number))
            write_part(whole, names[-1], {name: _local(name, tensor) for name, tensor in part.items()})
        write_manifest(whole, run, names)
        if check is not None:
            check(whole)
        return commit.publish(directory, run.iteration)
    except BaseException:
        with suppress(OSError):
            commit.withdraw(directory, run.iteration)
        raise


def run_of(model: Model) -> Run:
    """The run's part of a manifest for the model. Raises `ConfigError` if the settings do not go together, ValueError
    for an option that this version does not know."""
    return Run(
        iteration=model.position.iteration,
        consumed_samples=model.position.consumed_samples,
        topology={"world_size": 1, "tp": 1, "cp": 1, "dp": 1, "pp": 1},
        config=_sections(model),
        scheduler={"num_steps": model.position.consumed_samples, **model.position.scheduler},
        optimizer=_record(model),
        loss_scaler=model.position.loss_scaler if model.states else None,
    )


def _sections(model: Model) -> dict[str, dict[str, Any]]:
    """The configuration for the manifest: all options of the network, and of a run those that the source gives, so that
    no default of ours is taken for its setting."""
    config, said = config_of(model.settings), values_of(model.settings)
    found: dict[str, dict[str, Any]] = {"optimizer_config": dict(model.position.hyperparameters)}
    of_network = {path: attrgetter(path)(config) for path in OF_MODEL if path in said or OPTIONS[path].of != "run"}
    for path, value in {**said, **of_network}.items():
        put(found, PUBLIC[path], value)
    return found


def _record(model: Model) -> OptimizerRecord | None:
    if not model.states:
        return None
    return OptimizerRecord(model.position.optimizer_kind, model.position.optimizer_steps, tuple(model.states))


def _local(name: str, tensor: LazyTensor) -> LocalTensor:
    return LocalTensor(place(ShardSpec(shape=tensor.shape, name=name), {}), tensor)
