"""Kinds of damage to the files of a checkpoint."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.commit import TRACKER
from parallel_core.checkpoint.manifest import MANIFEST


def flip(path: Path, byte: int = -1, bit: int = 0) -> None:
    """Flip one bit of a byte of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def exchange(path: Path, other: Path) -> None:
    """Give two files, or folders, each other's names."""
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


DAMAGES: dict[str, Callable[[Path, Path], None]] = {
    "first bit flipped": lambda path, other: flip(path, 0),
    "middle bit flipped": lambda path, other: flip(path, path.stat().st_size // 2, 3),
    "last bit flipped": lambda path, other: flip(path),
    "cut off": lambda path, other: path.write_bytes(path.read_bytes()[:-1]) and None,
    "cut in half": lambda path, other: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None,
    "emptied": lambda path, other: path.write_bytes(b"") and None,
    "longer": lambda path, other: path.write_bytes(path.read_bytes() + b"\0") and None,
    "deleted": lambda path, other: path.unlink(),
    "zeros": lambda path, other: path.write_bytes(bytes(path.stat().st_size)) and None,
    "swapped": exchange,
}
"""Kind -> a function (file, other file) that damages the first; the other has its name in another checkpoint, or is
another of the same one."""


def files_of(root: Path, folder: Path) -> list[Path]:
    """The tracker of `root`, and manifest and tensor files of its checkpoint `folder`: all that a load of it reads."""
    tensors = (path for path in folder.iterdir() if path.suffix in (".safetensors", ".ckpt"))
    return [root / TRACKER, folder / MANIFEST, *sorted(tensors)]


def random_bits(path: Path, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """[(byte, bit)] of `count` places all over a file, at most one in each byte."""
    draw = np.random.default_rng(seed)
    size = path.stat().st_size
    return [(int(byte), int(draw.integers(8))) for byte in np.linspace(0, size - 1, min(count, size))]
