"""Several data sets, which `dataset_info.json` lists, in one: `--mix-strategy` of LlamaFactoryInstructionHandler."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.data.instruction.columns import OPENAI_TAGS, Columns, Tags

MIX_STRATEGIES = ("concat", "interleave_under", "interleave_over")


@dataclass(frozen=True)
class Source:
    """A file or folder of records, with the converter and the columns by which they are read."""

    path: Path
    converter: str | None
    columns: Columns


_COLUMNS = {
    "alpaca": ("system", "prompt", "query", "response", "history"),
    "sharegpt": ("system", "messages", "tools"),
    "openai": ("system", "messages", "tools"),
}
"""Formatting -> names of columns that `columns` of a data set may give; others are not read."""


def listed_sources(names: str, dataset_dir: str | None) -> list[Source]:
    """The data sets `names`, separated by commas, as `dataset_info.json` in the folder `dataset_dir` lists them; of a
    name with slashes the part behind the last counts. Raises ValueError where the folder is None, or the file or a data
    set is missing or wrong."""
    if dataset_dir is None:
        raise ValueError("--handler-name LlamaFactoryInstructionHandler needs --dataset-dir, with a dataset_info.json")
    path = Path(dataset_dir, "dataset_info.json")
    try:
        info = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--dataset-dir: {path} cannot be read as JSON ({error})") from error
    wanted = [name.split("/")[-1].strip() for name in names.split(",")]
    missing = [name for name in wanted if not isinstance(info, dict) or name not in info]
    if missing:
        raise ValueError(f"--input {missing[0]} is not in {path}; name its data sets, separated by commas")
    return [_source(name, info[name], path) for name in wanted]


def _source(name: str, given: Any, path: Path) -> Source:
    formatting = given.get("formatting", "alpaca") if isinstance(given, dict) else None
    if formatting not in [*_COLUMNS] or not isinstance(given.get("file_name"), str):
        raise ValueError(f"{path}: {name} must have a file_name, and formatting {' or '.join(_COLUMNS)}")
    wrong = [key for key in ("columns", "tags") if not _are_names(given.get(key, {}))]
    if wrong:
        raise ValueError(f"{path}: {name}: {wrong[0]} must be an object of names")
    if given.get("ranking"):
        raise ValueError(f"{path}: {name} is for comparisons (ranking); give --handler-name AlpacaStylePairwiseHandler")
    columns = Columns(tags=OPENAI_TAGS if formatting == "openai" else Tags())
    if "columns" in given:
        columns = replace(columns, **{key: given["columns"].get(key) for key in _COLUMNS[formatting]})
    if formatting == "sharegpt" and "tags" in given:
        columns = replace(columns, tags=Tags(**{key: given["tags"].get(key) for key in Tags.__dataclass_fields__}))
    return Source(path.parent / given["file_name"], formatting, columns)


def _are_names(given: Any) -> bool:
    return isinstance(given, dict) and all(value is None or isinstance(value, str) for value in given.values())


def interleaved(
    lengths: Sequence[int], probabilities: Sequence[float] | None, seed: int, until_all: bool
) -> Iterator[tuple[int, int]]:
    """(number of the data set, number of the record in it) of each record of the mixture: data sets in turn, or drawn
    with `probabilities` and `seed` as HuggingFace's datasets draws them.

    lengths: records of each data set, none 0. probabilities: as of `checked_probabilities`. until_all: until the last
    data set ends, where shorter ones begin again; False: until the first ends. Without probabilities each data set
    gives a record in the last round, too.
    """
    if probabilities is None:
        for number in range(max(lengths) if until_all else min(lengths)):
            yield from ((which, number % length) for which, length in enumerate(lengths))
        return
    ended = np.zeros(len(lengths), bool)
    nexts = [0] * len(lengths)
    random = np.random.default_rng(seed)
    while True:
        for which in random.choice(len(lengths), size=1000, p=probabilities).tolist():
            if ended.all() if until_all else ended.any():
                return
            yield which, nexts[which]
            nexts[which] += 1
            if nexts[which] >= lengths[which]:
                ended[which], nexts[which] = True, 0


_INEXACT = 1e-8
"""The most that probabilities may sum to apart from 1: NumPy, which draws with them, takes no more."""


def checked_probabilities(text: str | None, number: int, until_all: bool) -> list[float] | None:
    """The probabilities of `number` data sets in the text of `--interleave-probs`; None without one. Raises ValueError
    unless they are as many, none negative, and sum to 1; with `until_all` (interleave_over) also for a 0, as a data set
    that is never drawn does not end."""
    if text is None:
        return None
    try:
        given = [float(part) for part in text.split(",")]
    except ValueError:
        given = []
    if len(given) != number or not abs(sum(given) - 1) <= _INEXACT or min(given) < 0:
        raise ValueError(f"--interleave-probs {text}: must be {number} numbers, one a data set, that sum to 1")
    if until_all and 0 in given:
        raise ValueError(
            f"--interleave-probs {text}: with --mix-strategy interleave_over each must be above 0, as it draws until "
            "the last data set ends; leave out the data set of probability 0"
        )
    return given
