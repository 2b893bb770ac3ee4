"""The recorded cases of instruction data, and the inputs that they were made of."""

from __future__ import annotations

import hashlib
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.support.assets import asset, recorded

CASES: dict[str, dict[str, dict]] = recorded("instruction/cases.json.xz")
""""preprocess", "dataset", "sft" -> case -> what was recorded of it; files and arrays as hashes."""


@cache
def _unpacked() -> TemporaryDirectory:
    folder = TemporaryDirectory()
    with tarfile.open(asset("instruction/inputs.tar.xz")) as archive:
        archive.extractall(folder.name, filter="data")
    return folder


def inputs() -> Path:
    """A folder with input/, tokenizers/ and megatron_sft/, unpacked once."""
    return Path(_unpacked().name)


def flags(case: dict, out: Path | str = "", of_case: Path | str = "") -> list[str]:
    """A case's flags, with paths in place of <input>, <tokenizers>, <out> and <case>."""
    places = {
        "<input>": inputs() / "input",
        "<tokenizers>": inputs() / "tokenizers",
        "<out>": out,
        "<case>": of_case,
    }
    given = []
    for flag in case["flags"]:
        for name, path in places.items():
            flag = flag.replace(name, str(path))
        given.append(flag)
    return given


def hashed(content: bytes) -> str:
    """The hash of some bytes as the cases record it: 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def hashed_files(folder: Path) -> dict[str, str]:
    """Name -> `hashed` content of every file in a folder."""
    return {path.name: hashed(path.read_bytes()) for path in sorted(folder.iterdir())}


def hashed_array(array: np.ndarray) -> list:
    """[shape, `hashed` bytes] of an array."""
    return [list(array.shape), hashed(np.ascontiguousarray(array).tobytes())]
