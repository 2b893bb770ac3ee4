"""Tables of a device file from measured seconds: by the size of the work, and smoothed, so that a disturbed time counts
as one of all."""

from collections.abc import Mapping, Sequence
from itertools import islice, product
from math import inf
from typing import Any, TypeVar

import numpy as np

from parallel_core.operations import ATTENTION_GRADIENT, EMBEDDING, FIVE_FOR_TWO, LOSS, gradient_of
from parallel_core.planner.speed import CAUSAL

Size = TypeVar("Size", int, float)
TOKENS, LENGTHS = (64, 128, 256, 512, 1024, 2048), (128, 256, 512, 1024, 2048)
"""Tokens of the linears that are measured, and of the sequences of attention."""
FEW, MANY, SIZE = 2, 8, 64
"""The two numbers of heads for which attention is measured, and the channels of each."""
LEAST_OF_SIZE = 0.01
"""The least part of a measured time that counts as the work's own, not as that of its call: noise must not make it
0."""
LAUNCHES_OF = {ATTENTION_GRADIENT: 2, LOSS: 4, gradient_of(LOSS): 4, EMBEDDING: 2, gradient_of(EMBEDDING): 2}
"""Launches that the planner counts for a call of an operator, where that is not one."""


def flops_of_head(name: str, length: int) -> float:
    """FLOPs of a head as the planner counts them, of the whole square of scores."""
    return 4.0 * length * length * SIZE * (FIVE_FOR_TWO if name == ATTENTION_GRADIENT else 1)


def attention_table(seconds: Mapping[tuple[str, int, int], float], launch: float, peak: float) -> dict[str, Any]:
    """Attention's part of a device file, from the seconds of `attentions`: its "share" of the peak, "by_size", and
    "launch_flops". Each pass takes seconds for its call, and for each head seconds of its FLOPs and of its tokens; of
    those of its call, `launch` seconds of each launch are counted elsewhere. peak: FLOP/s."""
    of_flop, of_launch = dict[tuple[str, int], float](), dict[str, float]()
    for name in dict.fromkeys(name for name, *_ in seconds):
        flops = {length: flops_of_head(name, length) for length in LENGTHS}
        measured = {key[1:]: each for key, each in seconds.items() if key[0] == name}
        terms = [[1.0, heads * flops[length], heads * length] for length, heads in measured]
        call, of_one, of_token = factors_of(terms, [*measured.values()])
        of_launch[name] = max(0.0, call / LAUNCHES_OF.get(name, 1) - launch)
        for length in LENGTHS:
            least = LEAST_OF_SIZE * measured[length, MANY] / MANY
            of_flop[name, length] = max(of_one * flops[length] + of_token * length, least) / flops[length]
    level = max(min(of_flop.values()), CAUSAL / peak)
    launch_flops = {name: each / level for name, each in of_launch.items()}
    return {
        "share": min(1.0, CAUSAL / level / peak),
        "by_size": multiples(of_flop, level),
        "launch_flops": launch_flops,
    }


def of_size(seconds: Mapping[tuple[str, Size], float], launch: float) -> dict[tuple[str, Size], float]:
    """(name, size) -> smoothed seconds for one of the size, from those of a call, of which `launch` seconds of each
    launch are counted elsewhere."""
    found: dict[tuple[str, Size], float] = {}
    for name in dict.fromkeys(name for name, _ in seconds):
        sizes = [size for known, size in seconds if known == name]
        values = smooth(sizes, [seconds[name, size] for size in sizes], launch * LAUNCHES_OF.get(name, 1))
        found |= {(name, size): value for size, value in zip(sizes, values, strict=True)}
    return found


def multiples(per_size: Mapping[tuple[str, Size], float], level: float) -> dict[str, list[list[float]]]:
    """Name -> [size, value as a multiple of `level`] for each key (name, size), in the order of the keys."""
    found = dict[str, list[list[float]]]()
    for (name, size), value in per_size.items():
        found.setdefault(name, []).append([float(size), value / level])
    return found


def smooth(sizes: Sequence[float], seconds: Sequence[float], counted: float = 0.0) -> list[float]:
    """Seconds for one of each size, smoothed, from those of a call: a call takes a part for itself, of which `counted`
    are left out, a part in proportion to its size, and one that grows with the size's logarithm, too, since caches hold
    small sizes alone. So a disturbed time counts as one of all."""
    least, own = sizes[0], np.array(sizes)
    grows = np.log2(own / least)
    of_call, of_one, more = factors_of(np.stack([np.ones(len(own)), own, own * grows], axis=1), seconds)
    values = np.maximum(of_call - counted, 0.0) / own + of_one + more * grows
    return [float(value) for value in np.maximum(values, LEAST_OF_SIZE * np.array(seconds) / own)]


def factors_of(terms: Any, seconds: Sequence[float]) -> list[float]:
    """The factors of the terms [measurements, terms], none of them below 0, whose sums have the least squares of
    relative distances from `seconds`, which are above 0."""
    shares = np.array(terms) / np.array(seconds)[:, None]
    found, least = np.zeros(shares.shape[1]), inf
    for chosen in islice(product((False, True), repeat=shares.shape[1]), 1, None):
        some = shares[:, chosen]
        factors = np.linalg.lstsq(some, np.ones(len(some)), rcond=None)[0]
        distance = float(np.square(some @ factors - 1).sum())
        if (factors >= 0).all() and distance < least:
            found, least = np.zeros(shares.shape[1]), distance
            found[[*chosen]] = factors
    return [float(factor) for factor in found]
