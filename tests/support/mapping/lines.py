"""Command lines for tests: a good one, and changes of it."""

from __future__ import annotations

from mapping.merge import Reading
from mapping.reading import read

GOOD = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--vocab-size 512 --micro-batch-size 2 --global-batch-size 8 --train-iters 10 --lr 1e-3"
)


def line(change: str = "") -> list[str]:
    """The words of the good command line with `change` behind it; a word `~x` takes flag `--x` and its value out."""
    words, added = GOOD.split(), change.split()
    for word in [word for word in added if word.startswith("~")]:
        position = words.index(f"--{word[1:]}")
        del words[position : position + 2]
        added.remove(word)
    return words + added


def reading(change: str = "", world_size: int = 1) -> Reading:
    """The reading (config, findings, notes) of the good line with `change`."""
    return read(line(change), world_size=world_size)
