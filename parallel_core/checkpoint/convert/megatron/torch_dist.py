"""Megatron's `--ckpt-format torch_dist`, read: parameters and optimizer states out of the tensors in its files.

Layers that are alike can be one tensor, with an axis for the layer first. Experts can be one tensor, with an axis for
the expert: the first, or the second behind that for the layer.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.convert.megatron.args import args_in, position_of, settings_of
from parallel_core.checkpoint.convert.megatron.buckets import of_buckets
from parallel_core.checkpoint.convert.megatron.names import IS_NO_PARAMETER, spellings
from parallel_core.checkpoint.convert.megatron.optimizer import (
    OURS,
    REMEDY,
    flat_buffers,
    hyperparameters_of,
    loss_scaler_of,
    steps_of,
)
from parallel_core.checkpoint.convert.megatron.out_norm import as_ours
from parallel_core.checkpoint.convert.model import VOCABULARY, Model
from parallel_core.checkpoint.lazy import Assembled, LazyTensor, assembled, concatenated, rounds_to
from parallel_core.checkpoint.torch_files import distributed
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.checkpoint.torch_files.distributed import METADATA
from parallel_core.sharding import Box
from parallel_core.system.files import plain_file, read_json


def unblocked(tensor: Assembled, shape: tuple[int, ...]) -> Assembled:
    """A state in the shape of its weight, from [blocks along each axis, elements of a block in row order]; as it is
    where it has the weight's shape. Raises ValueError if blocks do not fit the shape, ZeroDivisionError for no block
    along an axis."""
    if tensor.shape == shape:
        return tensor
    *counts, entries = tensor.shape
    block = tuple(n // c for n, c in zip(shape, counts, strict=True))
    if prod(block) != entries or prod(tensor.shape) != prod(shape):
        raise ValueError(f"a state of shape {list(tensor.shape)} does not fit its weight of {list(shape)}")
    pieces = [
        (
            Box.alone(tuple(i * n for i, n in zip(index, block, strict=True)), block),
            tensor.part(Box.alone((*index, 0), (*(1 for _ in index), entries))).reshaped(block),
        )
        for index in product(*map(range, counts))
    ]
    return assembled(shape, tensor.dtype, pieces)


COMMON, CONFIG = "common.pt", "metadata.json"
_OF_OPTIMIZER = re.compile(r"(chained_\d+\.)?optimizer\.")
"""Beginning of an optimizer's keys; those of experts and of the rest are numbered, where there are both."""
_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(\w+?)\.(.+)")
_PARTS = "query", "key", "value", "z", "x", "B", "C", "dt", "beta", "alpha"
"""Fused parts of a mixer's first linear and of its convolution, in their order."""
_PART = re.compile(rf".*\.(in_proj|conv1d)\.(weight|bias)\.({'|'.join(_PARTS)})")
_BUCKETS = re.compile(r"(chained_\d+\.)?optimizer\.distributed\.")


def is_torch_dist(folder: Path) -> bool:
    """Whether a folder is a checkpoint of this format, of one iteration, by its file .metadata alone."""
    return (folder / METADATA).is_file()


def read_torch_dist(folder: Path, *, optimizer: bool = True) -> Model:
    """The model of a torch_dist checkpoint; whether its settings need these weights is not checked. optimizer: read the
    optimizer's states, steps, hyperparameters and loss scaler, too. Raises ValueError if common.pt or metadata.json is
    missing, or states do not fit the weights; KeyError, OSError and others for files that are wrong in other ways."""
    _check_whole(folder)
    content = read_archive(plain_file(folder, COMMON))
    args = args_in(content)
    tensors = read_tensors(folder)
    weights = {key: tensor for key, tensor in tensors.items() if not _OF_OPTIMIZER.match(key)}
    model = Model(dict(_by_parameter(weights)), settings_of(args), position=position_of(content, args))
    if optimizer:
        content = {**content, "optimizer": _groups(folder) or content.get("optimizer")}
        model.position.hyperparameters = hyperparameters_of(content)
        model.position.loss_scaler = loss_scaler_of(content, folder / COMMON)
        model.states = _states(tensors, weights, folder)
        _check_places(model, content, folder)
        buckets = {key: tensor for key, tensor in (*tensors.items(), *_gathered(folder)) if _BUCKETS.match(key)}
        if buckets and not model.states:
            model.states = of_buckets(buckets, model, args, folder)
        model.position.optimizer_steps = steps_of(content) if model.states else 0
    return as_ours(model)


def _check_whole(folder: Path) -> None:
    """Raise ValueError if the files that Megatron writes last are missing, or of another kind."""
    for name, why in ((COMMON, "it says what the network is"), (CONFIG, "it is written when a save has ended")):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: missing: {why}; restore it or take another checkpoint")
    content = read_json(plain_file(folder, CONFIG))
    kind = content.get("sharded_backend") if isinstance(content, dict) else None
    if kind != "torch_dist":
        raise ValueError(f"{folder / CONFIG}: sharded_backend is {kind!r}, known is torch_dist; save it again by it")


def read_tensors(folder: Path) -> dict[str, Assembled]:
    """Key in the files -> tensor, unread; left out are keys that match `IS_NO_PARAMETER`, of neither a parameter nor an
    optimizer's state."""
    return distributed.read_tensors(folder, lambda key: not IS_NO_PARAMETER.search(key))


def _by_parameter(tensors: Mapping[str, Assembled]) -> Iterator[tuple[str, LazyTensor]]:
    """(our name, tensor) of all parameters: stacked layers and experts taken apart, gate and up joined, and so are the
    parts of a mixer that keeps a state."""
    unstacked = dict(entry for key, tensor in tensors.items() for entry in _unstacked(key, tensor))
    for name in [name for name in unstacked if name.endswith("_w") and f"{name[:-2]}_v" in unstacked]:
        whole = name.removesuffix("_w")
        unstacked[whole] = concatenated([unstacked.pop(f"{whole}_{half}") for half in "wv"])
    parts: dict[str, dict[str, LazyTensor]] = defaultdict(dict)
    for name in [name for name in unstacked if _PART.fullmatch(name)]:
        whole, _, part = name.rpartition(".")
        parts[whole][part] = unstacked.pop(name)
    for whole, of_whole in parts.items():
        unstacked[whole] = concatenated([of_whole[part] for part in sorted(of_whole, key=_PARTS.index)])
    names = spellings(unstacked)
    for name, tensor in unstacked.items():
        yield names[name], tensor


def _unstacked(key: str, tensor: Assembled) -> Iterator[tuple[str, LazyTensor]]:
    patterns = []
    if re.match(r"decoder\.layers\.(?!\d)", key):
        patterns.append((r"decoder\.layers\.", "decoder.layers.{}."))
    if re.search(r"\.mlp\.experts\.experts\.(?!\d)", key):
        patterns.append((r"\.mlp\.experts\.experts\.", ".mlp.experts.local_experts.{}."))
    for numbers in product(*map(range, tensor.shape[: len(patterns)])):
        name = key
        for number, (pattern, replacement) in zip(numbers, patterns, strict=True):
            name = re.sub(pattern, replacement.format(number), name)
        rest = tensor.shape[len(patterns) :]
        start = (*numbers, *(0 for _ in rest))
        box = Box.alone(start, (*(1 for _ in numbers), *rest))
        yield name, tensor.part(box).reshaped(rest) if patterns else tensor


def _states(
    tensors: Mapping[str, Assembled], weights: Mapping[str, Assembled], folder: Path
) -> dict[str, dict[str, LazyTensor]]:
    """State -> our name -> values, of states that are stored by parameter. Raises ValueError for a state of no weight,
    or a second one of the same."""
    by_state: dict[str, dict[str, Assembled]] = defaultdict(dict)
    for key, tensor in tensors.items():
        match = _STATE.fullmatch(key)
        if match and match[1] in OURS:
            state, name = OURS[match[1]], match[2]
            if name not in weights or name in by_state[state]:
                problem = "a weight that is not there" if name not in weights else "a weight that another one has, too"
                raise ValueError(f"{folder / METADATA}: {key}: a state of {problem}; {REMEDY}")
            by_state[state][name] = unblocked(tensor, weights[name].shape)
    return {state: dict(_by_parameter(found)) for state, found in by_state.items()}


def _check_places(model: Model, content: Mapping[str, Any], folder: Path) -> None:
    """Raise ValueError if `fully_reshardable` states are at wrong places.

    megatron-core 0.16 has this fault: it cuts the states out of a memory without the padding of buckets, at the places
    of one with it. Looked at are vectors, the word embedding and the output layer.
    """
    metadata = content.get("content_metadata")
    kind = metadata.get("distrib_optim_sharding_type") if isinstance(metadata, dict) else None
    for name, main in model.states.get("main_param", {}).items() if kind == "fully_reshardable" else ():
        if (len(main.shape) == 1 or name in VOCABULARY) and not rounds_to(main, model.weights[name]):
            raise ValueError(
                f"{folder}: optimizer.state.param of {name} is not what its weight was rounded from: megatron-core "
                f"0.16 mixes up states of several buckets in this format; save them without "
                f"--dist-ckpt-optim-fully-reshardable, or {REMEDY}"
            )


def _groups(folder: Path) -> list[Any]:
    """Objects of the distributed optimizer beside its tensors: parameter groups with betas and steps, loss scalers."""
    found = []
    for key, value in _objects(folder):
        if key.endswith(".optimizer"):
            found += value
        elif key.endswith(".grad_scaler"):
            found += [{"grad_scaler": one} for one in value]
    return found


def _gathered(folder: Path) -> Iterator[tuple[str, LazyTensor]]:
    """(key of a bucket, flat values) of states that one rank gathered (`dp_zero_gather_scatter`)."""
    for key, value in _objects(folder):
        if key.endswith(".param_state"):
            for one in value:
                for number, buffer in enumerate(flat_buffers(one)):
                    for state, flat in buffer.items():
                        yield f"{key.removesuffix('param_state')}gbuf_idx_{number}.dtype_().bucket_idx_0.{state}", flat


def _objects(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """(key, values) of the objects that the distributed optimizer stores whole; tensors in them are unread."""
    kept = (".optimizer", ".grad_scaler", ".param_state")
    for key, value in distributed.read_objects(folder, lambda key: bool(_BUCKETS.match(key)) and key.endswith(kept)):
        yield key, value if isinstance(value, list) else [value]
