"""The first checkpoint in which two runs' weights differ, found by bisection."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.compare.differences import ROUNDINGS, SAME, Difference, allowed, distance, place_in_model
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import ShardSpec, place

ONE = {name: (0, 1) for name in ("tp", "ep", "expert-tp", "pp", "dp", "cp")}


def whole(reader: CheckpointReader, name: str) -> Array:
    """A checkpoint's tensor `name`, whole, as float32. Raises KeyError for a name that the checkpoint lacks, and
    otherwise as `CheckpointReader.read`."""
    shape = reader.manifest.tensors[name].shape
    out = np.empty(shape, np.float32)
    return reader.read(name, place(ShardSpec(shape=shape, name=name), ONE), out)


def first_weight(one: Path, other: Path, step: int, exact: bool) -> Difference | None:
    """The first weight, in the order of the model, that differs between two runs' checkpoints of a step, or that only
    one of them has; None if all agree. With `exact` any difference of float32 values counts, without it one that
    rounding does not explain; a vocabulary's padding is left out if it differs in size. Raises ValueError for a folder
    without a checkpoint of the step, ValueError or OSError for one that cannot be read."""
    readers = [open_checkpoint(folder, step) for folder in (one, other)]
    names = [set(reader.manifest.weights) for reader in readers]
    limit = 0.0 if exact else allowed("update", ["float32"], exact) / ROUNDINGS["update"] * ROUNDINGS["gradient"]
    for name in sorted(names[0] | names[1], key=place_in_model):
        owners = [folder for folder, own in zip((one, other), names, strict=True) if name in own]
        if len(owners) == 1:
            return Difference("weight", step, name, None, math.inf, 0.0, f"only {owners[0]} has it")
        mine, theirs = _without_padding(readers, [whole(reader, name) for reader in readers])
        apart = distance(mine, theirs)
        if apart > limit:
            words = "" if mine.shape == theirs.shape else f"shapes {list(mine.shape)} and {list(theirs.shape)}"
            return Difference("weight", step, name, None, apart, limit, words)
    return None


def _without_padding(readers: Sequence[CheckpointReader], arrays: Sequence[Array]) -> Sequence[Array]:
    """Two checkpoints' arrays of a weight; a table of the vocabulary that their layouts pad to different sizes is cut
    to the ids that the tokenizer has."""
    vocabularies = [reader.stored_vocabulary for reader in readers]
    rows = [array.shape[0] if array.ndim else 0 for array in arrays]
    if rows[0] == rows[1] or rows != [vocabulary.padded for vocabulary in vocabularies]:
        return arrays
    return [array[: vocabulary.unpadded] for array, vocabulary in zip(arrays, vocabularies, strict=True)]


def halved(steps: Sequence[int], differs: Callable[[int], bool]) -> int | None:
    """The first of the ascending `steps` for which `differs` holds, found by bisection: it must hold for all later
    ones, too. None if it does not hold for the last, or there are no steps."""
    if not steps or not differs(steps[-1]):
        return None
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(steps[middle]) else (middle + 1, high)
    return steps[low]


def bisected(one: Path, other: Path, exact: bool) -> tuple[list[str], bool]:
    """Find, by bisection, the first step whose checkpoints in two runs' folders have different weights: (lines to print
    about it, whether the weights of the last step differ). All steps after a different one are taken to differ, too;
    steps without a whole checkpoint in both folders are left out. exact: as for `first_weight`. Raises ValueError if no
    step is left, ValueError or OSError for a folder or file that cannot be read."""
    steps = sorted({*commit.steps(one)} & {*commit.steps(other)})
    if not steps:
        raise ValueError(f"{one}, {other}: have no checkpoint of the same step; save both with one --save-interval")
    found: dict[int, Difference | None] = {}

    def differs(step: int) -> bool:
        if step not in found:
            found[step] = first_weight(one, other, step, exact)
        return found[step] is not None

    first = halved(steps, differs)
    looked = f"{len(steps)} checkpoints of both, {len(found)} of them read"
    if first is None:
        return [f"{looked}: weights are the same up to step {steps[-1]}, {SAME[exact]}"], False
    before = max((step for step in steps if step < first), default=0)
    again = f"with --load {one} --ckpt-step {before} " if before else ""
    return [
        f"{looked}: the same up to step {before}",
        f"the first that differ: {found[first]}",
        f"to see more, run both again {again}with --record --record-step-start {before} --record-step-end {first}",
    ], True
