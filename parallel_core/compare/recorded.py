"""The record of a step: a folder with a file for each rank, whatever layout, or program, wrote it.

    record/step_00000012/step.json     figures of the step (loss, grad_norm, lr ...), and the type of layers
    record/step_00000012/rank_3.npz    arrays, by keys whose words stand between bars:

        tokens|MICRO_BATCH                     int [b, s], whole sequences
        activation|MICRO_BATCH|ORDER|NAME      [s', b, h'], what a cell gave: positions and features at even distances
        positions|MICRO_BATCH|ORDER|NAME       [s'], their places in the sequence
        gradient|NAME, before|NAME, after|NAME     entries of a whole parameter at even distances
        gradient.whole|NAME ...                [norm, digest] of the whole

MICRO_BATCH counts within the global batch, ORDER is the place in the model, NAME the global name.
"""

import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.compare.sample import Sample
from parallel_core.numerics.dtypes import Array
from parallel_core.system.files import replacing

RECORD = "record"
FIGURES = "step.json"
DAMAGES = (OSError, LookupError, ValueError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error)
"""Errors of reading .npz and JSON files that are damaged or hold something else."""
_BAR = "|"
OF_PARAMETERS = ("gradient", "before", "after")


@dataclass
class Step:
    """The recorded figures, tokens and samples of one step of a run."""

    figures: dict[str, Any] = field(default_factory=dict)
    """Name (loss, grad_norm, lr, ...) -> figure of the whole step."""
    dtype: str = "float32"
    """The type in which layers compute."""
    tokens: dict[int, Array] = field(default_factory=dict)
    """Micro-batch -> token ids [b, s]."""
    activations: dict[tuple[int, str, str], Array] = field(default_factory=dict)
    """(Micro-batch, place in the model, name of the cell) -> sampled activation [s', b, h']."""
    gradients: dict[str, Sample] = field(default_factory=dict)
    """Global name -> sample of the averaged gradient, before clipping."""
    before: dict[str, Sample] = field(default_factory=dict)
    """Global name -> sample of the weight before the update; recorded for the first recorded step alone."""
    previous: dict[str, Sample] = field(default_factory=dict)
    """Global name -> sample of the weight after the step before, which a later step has instead of `before`."""
    after: dict[str, Sample] = field(default_factory=dict)
    """Global name -> sample of the weight after the update."""


def step_folder(folder: Path, step: int) -> Path:
    """The folder of a step's record below `folder`."""
    return folder / f"step_{step:08d}"


def key(*words: object) -> str:
    """The key of an array in a rank's file: its words joined by bars (|)."""
    return _BAR.join(map(str, words))


def of_parameters(kind: str, wholes: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a rank's file for whole parameters, by key: sampled entries, and norm and digest. kind: one of
    OF_PARAMETERS. wholes: arrays by global name."""
    found: dict[str, Array] = {}
    for name, whole in wholes.items():
        sample = Sample.of(whole)
        found[key(kind, name)] = sample.values
        found[key(f"{kind}.whole", name)] = np.array([sample.norm, sample.digest], np.float64)
    return found


def write_step(
    folder: Path, step: int, rank: int, arrays: Mapping[str, Array], figures: Mapping[str, Any] | None, dtype: str
) -> None:
    """Write a rank's file of a step's record below `folder` and, if `figures` are given, step.json with them and
    `dtype`, the type in which layers compute. arrays: by their keys in the file (`key`). Raises OSError if a file
    cannot be written."""
    place = step_folder(folder, step)
    place.mkdir(parents=True, exist_ok=True)
    with replacing(place / f"rank_{rank}.npz") as file:
        np.savez(file, **arrays)
    if figures is not None:
        with replacing(place / FIGURES) as file:
            file.write(json.dumps({"figures": figures, "dtype": dtype}, default=float).encode())


def recorded_steps(folder: Path) -> list[int]:
    """The steps, ascending, of the records in `folder`, by the names of their folders; empty if it does not exist."""
    return sorted(int(path.name[5:]) for path in folder.glob("step_*") if path.name[5:].isdigit())


def read_record(folder: Path, step: int) -> Step:
    """The record of a step below `folder` (`step_folder`), put together from the ranks' files in it; its `previous` is
    empty. Raises ValueError if step.json is missing, a file is cut off, or a rank's file lacks positions or
    [norm, digest] of an array in it; a rank's file that is missing is not noticed."""
    place = step_folder(folder, step)
    try:
        told = json.loads((place / FIGURES).read_text())
        files = [dict(np.load(path)) for path in sorted(place.glob("rank_*.npz"))]
        return _together(Step(told["figures"], told["dtype"]), files)
    except DAMAGES as error:
        raise ValueError(f"{place}: is no whole record of a step ({error}); record it again") from error


def _together(step: Step, files: Iterable[Mapping[str, Array]]) -> Step:
    parts: dict[tuple[int, str, str], dict[int, Array]] = {}
    targets = dict(zip(OF_PARAMETERS, (step.gradients, step.before, step.after), strict=True))
    for arrays in files:
        for name, values in arrays.items():
            kind, *words = name.split(_BAR)
            if kind == "tokens":
                step.tokens[int(words[0])] = values
            elif kind == "activation":
                micro_batch, order, cell = words
                positions = arrays[key("positions", *words)]
                rows = parts.setdefault((int(micro_batch), order, cell), {})
                rows.update(zip(map(int, positions), values, strict=True))
            elif kind in targets:
                norm, digest = arrays[key(f"{kind}.whole", *words)]
                targets[kind][words[0]] = Sample(values, float(norm), int(digest))
    for place in sorted(parts):
        step.activations[place] = np.stack([parts[place][position] for position in sorted(parts[place])])
    return step
