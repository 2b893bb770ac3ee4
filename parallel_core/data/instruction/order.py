"""Which conversation a sample of training is: whole passes over the data, as MindSpeed-LLM draws them."""

import random

import numpy as np
from numpy.typing import NDArray

from parallel_core.config.notations import split_shares


def split_bounds(split: str, size: int) -> list[tuple[int, int]]:
    """First and last (exclusive) conversation of train, valid and test: each share rounded, what is over or short goes
    to all."""
    shares = split_shares(split)[:3]
    shares += [0.0] * (3 - len(shares))
    whole = sum(shares)
    bounds = [0]
    for share in shares:
        bounds.append(bounds[-1] + round(share / whole * float(size)))
    over = bounds[-1] - size
    bounds[1:] = [bound - over for bound in bounds[1:]]
    return [(bounds[number], bounds[number + 1]) for number in range(3)]


def order_of_samples(
    first: int,
    last: int,
    samples: int,
    seed: int,
    *,
    shuffle: bool = True,
    shuffle_all: bool = False,
    batch: int | None = None,
) -> NDArray[np.int32]:
    """The conversations first ... last - 1, as often as `samples` needs, in the order of training.

    shuffle: each pass anew. shuffle_all: all passes together once more. batch: fill up each pass to whole batches of it
    with the first conversations of all.
    """
    one_pass = np.arange(first, last, dtype=np.int64)
    if batch is not None and len(one_pass) % batch:
        one_pass = np.append(one_pass, np.arange(batch - len(one_pass) % batch, dtype=np.int64))
    drawn = np.random.RandomState(seed)
    passes = []
    for _ in range(max(-(-samples // len(one_pass)), 1) if len(one_pass) else 0):
        this = one_pass.copy()
        if shuffle:
            drawn.shuffle(this)
        passes.append(this)
    order = np.concatenate(passes).astype(np.int32) if passes else np.zeros(0, np.int32)
    if shuffle_all:
        listed = order.tolist()
        random.Random(seed).shuffle(listed)
        order = np.array(listed, np.int32)
    return order
