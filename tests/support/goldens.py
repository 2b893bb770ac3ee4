"""The recorded training cases, whose initial weights are stored in a tenth of their bytes without a loss.

torch draws them by a Mersenne twister, 24 bits a number, sixteen at a time by the method of Box and Muller (1958).
numpy has that generator, too: `drawn_weights.npz` stores of each array where its numbers begin, their scale, and by
how many units in the last place torch's float32 arithmetic differs from float64. Norms and biases stay whole.

    python -m tests.support.goldens CASE_DIR      # CASE_DIR/weights.npz becomes CASE_DIR/drawn_weights.npz
"""

import json
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from tests.support.assets import asset

STORED, WHOLE = "drawn_weights.npz", "weights.npz"
NAMES, PLACES, SCALES, BITS = "drawn/names", "drawn/places", "drawn/scales", "drawn/bits"
FLOAT32_BITS = 24
FURTHEST = 4_000_000
"""Number of a torch generator's draws that are searched for an array's beginning."""
MARGIN = 1e-14
"""Relative distance from the point at which float32's rounding changes: nearer results are stored whole, as libraries'
cosines differ by less."""

Reals = NDArray[np.float64]
Weights = dict[str, NDArray[np.float32]]


@cache
def _unpacked() -> TemporaryDirectory:
    return TemporaryDirectory()


@cache
def golden(name: str) -> Path:
    """The folder of a recorded case, with its initial weights whole; it lasts as long as this process."""
    return unpack(asset(f"golden/{name}"), Path(_unpacked().name) / name)


def unpack(case: Path, target: Path) -> Path:
    """A new folder with links to a case's files, and its initial weights whole."""
    target.mkdir()
    for file in case.iterdir():
        (target / file.name).symlink_to(file.resolve())
    np.savez(target / WHOLE, **whole(case))
    return target


def normals(seed: int, count: int) -> Reals:
    """The first `count` numbers, rounded up to a multiple of 16, that torch's generator of that seed draws from a
    normal distribution."""
    bits = np.random.RandomState(seed).randint(0, 2**32, size=-(-count // 16) * 16, dtype=np.uint32)
    uniform = ((bits & 0xFFFFFF) / 2**24).reshape(-1, 16)
    radius = np.sqrt(-2 * np.log(1 - uniform[:, :8]))
    angle = (uniform[:, 8:].astype(np.float32) * np.float32(2 * np.pi)).astype(np.float64)  # rounded, as torch's is
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()


def _scaled(values: Reals, bits: int) -> tuple[Reals, NDArray[np.int32]]:
    """(values times powers of two, so that the last of their `bits` counts 1; the exponents taken out)."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(fraction, bits), exponent - bits


def whole(case: Path) -> Weights:
    """Name -> weight of a case, from its `drawn_weights.npz`."""
    stored = dict(np.load(case / STORED))
    names, places, scales, bits = (stored.pop(key) for key in (NAMES, PLACES, SCALES, BITS))
    ends = [int(place) + stored[name].size for name, place in zip(names, places, strict=True)]
    drawn = normals(_seed(case), max(ends))
    for name, place, end, scale, width in zip(names, places, ends, scales, bits, strict=True):
        expected, exponent = _scaled(drawn[place:end] * scale, int(width))
        difference = stored[name]
        values = np.ldexp(np.rint(expected) + difference.ravel(), exponent)
        stored[name] = values.astype(np.float32).reshape(difference.shape)
    return stored


def store(case: Path) -> None:
    """Write a case's `drawn_weights.npz`, assert that it gives the weights back to the bit, and remove
    `weights.npz`."""
    weights, drawn = dict(np.load(case / WHOLE)), normals(_seed(case), FURTHEST)
    stored, found = dict(weights), []
    for name, values in weights.items():
        bits = FLOAT32_BITS - _bits_without_use(values)
        place, scale = _place(values.ravel().astype(np.float64), drawn, _scales(case))
        expected, exponent = _scaled(drawn[place : place + values.size] * scale, bits)
        safe = place >= 0 and np.abs(np.abs(expected - np.floor(expected)) - 0.5).min() > MARGIN * 2.0**bits
        if safe:
            difference = np.ldexp(values.ravel().astype(np.float64), -exponent) - np.rint(expected)
            stored[name] = difference.astype(np.int32).reshape(values.shape)
            found.append((name, place, scale, bits))
    for key, column in zip((NAMES, PLACES, SCALES, BITS), zip(*found, strict=True), strict=True):
        stored[key] = np.array(column)
    np.savez_compressed(case / STORED, **stored)
    again = whole(case)
    assert again.keys() == weights.keys()
    assert all(again[name].tobytes() == weights[name].tobytes() for name in weights)
    (case / WHOLE).unlink()


def _arguments(case: Path) -> dict:
    return json.loads((case / "config.json").read_text())["resolved_args"]


def _seed(case: Path) -> int:
    return _arguments(case)["seed"]


def _scales(case: Path) -> list[float]:
    """Standard deviations in float32 of a layer's first matrices, and of its last, which Megatron scales by depth."""
    arguments = _arguments(case)
    deviation = arguments["init_method_std"]
    return [float(np.float32(value)) for value in (deviation, deviation / np.sqrt(2 * arguments["num_layers"]))]


def _bits_without_use(values: NDArray[np.float32]) -> int:
    """The number of trailing zero bits that all values have: 16 where they were rounded to bfloat16."""
    used = int(np.bitwise_or.reduce(values.view(np.uint32), axis=None))
    return (used & -used).bit_length() - 1


def _place(values: Reals, drawn: Reals, scales: list[float], near: float = 0.02) -> tuple[int, float]:
    """(index in the generator's numbers at which an array begins, its scale); (-1, 0) if it was not drawn so."""
    for scale in scales if values.size >= 16 else []:
        matches = [np.abs(drawn[i : i - 3] - values[i] / scale) < near for i in range(3)]
        for place in np.nonzero(np.logical_and.reduce(matches))[0]:
            there = drawn[place : place + values.size]
            if there.size == values.size and np.abs(there * scale - values).max() < near * scale:
                return int(place), scale
    return -1, 0.0


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        store(Path(folder))
