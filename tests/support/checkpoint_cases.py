"""Checkpoints that other tools wrote, and what is in them (tests/assets/checkpoints)."""

import hashlib
import json
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import LazyTensor
from tests.support.assets import asset

CASES = sorted(
    str(path.relative_to(asset("checkpoints")))[: -len(".tar.xz")] for path in asset("checkpoints").glob("*/*.tar.xz")
)
"""Names of all recorded checkpoints, as "folder/name"."""

STATE_NAMES = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "main_param": "fp32_param"}


@cache
def facts(case: str) -> dict:
    """The record of a case: "parameters" and "optimizer" (name -> [shape, digest]), "vocab_size" and other sizes."""
    return json.loads(asset(f"checkpoints/{case}.json").read_text(encoding="utf-8"))


def unpack(case: str, folder: Path) -> Path:
    """Unpack the case's checkpoint below `folder`; its path."""
    target = folder / case.replace("/", "_")
    if not target.exists():
        with tarfile.open(asset(f"checkpoints/{case}.tar.xz")) as archive:
            archive.extractall(target, filter="data")
    return target / "checkpoint"


def digest(array: np.ndarray) -> list:
    """[shape, hexadecimal digest of the bytes] of an array."""
    return [list(array.shape), hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()]


def digests(tensors: Mapping[str, LazyTensor]) -> dict[str, list]:
    """Name -> `digest` of each tensor, widened to float32."""
    return {name: digest(tensor.widened()) for name, tensor in tensors.items()}


def state_digests(model: Model) -> dict[str, list]:
    """Digests of the optimizer's state, under the names of the recorded files."""
    return {
        f"{STATE_NAMES[state]}.{name}": found
        for state, tensors in model.states.items()
        for name, found in digests(tensors).items()
    }
