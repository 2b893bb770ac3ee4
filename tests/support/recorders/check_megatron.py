"""`python -m tests.support.recorders.check_megatron FOLDER ...`: recorded checkpoints are read, and every rank's own
weights and states must be slices of what was read, bit by bit."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.convert import formats

_FUSED = re.compile(r"(.*\.experts\.)weight([12])")


def is_slice(part: np.ndarray, whole: np.ndarray) -> bool:
    """Whether `part` is one of the equal parts of `whole` along an axis, or of both halves of a gated linear."""
    axes = [axis for axis, (n, m) in enumerate(zip(part.shape, whole.shape, strict=True)) if n != m]
    if not axes:
        return np.array_equal(part, whole)
    (axis,) = axes
    pieces = whole.shape[axis] // part.shape[axis]
    halves = [np.split(half, pieces) for half in np.split(whole, 2)] if axis == 0 else []
    gated = [np.concatenate(pair) for pair in zip(*halves, strict=True)]
    return any(np.array_equal(part, other) for other in (*np.split(whole, pieces, axis), *gated))


def experts_of(name: str, part: np.ndarray, found: dict[str, np.ndarray]) -> Iterator[bool]:
    """For each expert of a parameter that holds several, whether `found` has its weights."""
    match = _FUSED.fullmatch(name)
    assert match is not None
    pattern = re.compile(re.escape(match[1]) + rf"local_experts\.\d+\.linear_fc{match[2]}\.weight")
    wholes = [tensor for key, tensor in found.items() if pattern.fullmatch(key)]
    shape = wholes[0].shape[::-1]
    for one in part.reshape(-1, *shape):
        yield any(np.array_equal(one.T, whole) for whole in wholes)


def wrong(folder: Path) -> tuple[int, list[str]]:
    """(number of a case's arrays compared, names of those that are no slice of the tensors that we read)."""
    model = formats.read(folder / "checkpoint")
    found = {name: tensor.widened() for name, tensor in model.all_tensors()}
    if "main_param" not in model.states:  # float32 values of float32 weights
        found |= {f"main_param.{name}": found[name] for name in model.weights}
    compared, differ = 0, []
    for path in sorted(folder.glob("*_rank*.npz")):
        for key, part in np.load(path).items():
            name = re.sub(r"^param\.", "main_param.", key)
            if name.endswith("output_layer.weight") and name not in found:
                continue  # a tied model's copy
            compared += 1
            is_there = all(experts_of(name, part, found)) if _FUSED.fullmatch(name) else is_slice(part, found[name])
            differ += [] if is_there else [f"{path.name}: {key}"]
    return compared, differ


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        count, names = wrong(Path(argument))
        print(Path(argument).name, f"{count} tensors", names or "equal", flush=True)
