"""Megatron's pipeline layouts, such as `Et*3|(tt|)*29m|L`: what each virtual stage holds, in words or letters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mapping.flags.notations import MOST_LAYERS, literal

LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""What a stage may hold, by the words that lists use and the letters that texts use."""

_WHOLE = re.compile(r"E[t|]*[m|]*L")


def pipeline_layout(given: str | Sequence[Any]) -> list[str]:
    """Stages such as Et*3|(tt|)*5mL: E(mbedding), t for each layer, m(ulti-token prediction), L(oss), in this order.

    Returns the letters of each virtual stage, in the order in which a micro-batch goes through them. `x*n` and
    `(...)*n` repeat, commas mean nothing; lists of Megatron's words (embedding, decoder, mtp, loss) are taken as well.
    Raises ValueError for anything else.
    """
    if isinstance(given, str):
        given = literal(given) if given.lstrip().startswith("[") else _unrolled(given.replace(",", "")).split("|")
    if not all(isinstance(stage, str | list | tuple) for stage in given):
        raise ValueError(given)
    stages = ["".join(LETTERS.get(str(part).strip().lower(), str(part)) for part in stage) for stage in given]
    if not _WHOLE.fullmatch("|".join(stages)):
        raise ValueError(given)
    return stages


def _unrolled(text: str) -> str:
    """Without repetitions: those of groups first, the innermost before what surrounds it."""
    for repetition in (re.compile(r"\(([^()]+)\)\*(\d+)"), re.compile(r"([^()*\d])\*(\d+)")):
        found = repetition.search(text)
        while found:
            repeated, times = found[1], int(found[2])
            if len(repeated) * times > 2 * MOST_LAYERS:
                raise ValueError(text)
            text = text[: found.start()] + repeated * times + text[found.end() :]
            found = repetition.search(text)
    return text


def layers_of_stages(stages: Sequence[str], pipeline_size: int) -> list[int] | list[list[int]]:
    """How many layers each stage has, for each chunk where stages have several: as `--num-layer-list` says it."""
    counts = [stage.count("t") for stage in stages]
    chunks = [counts[start : start + pipeline_size] for start in range(0, len(counts), pipeline_size)]
    return chunks if len(chunks) > 1 else counts
