"""Random numbers of routers: functions of place, as dropout masks are."""

import numpy as np
from mindspore import Tensor

from parallel_core.context import Ranges
from parallel_core.moe.routing import Noise
from parallel_core.numerics.dtypes import Array
from pynative.kernels.dropout import Key
from pynative.tape.autograd import Moved
from pynative.tensor_parallel.random import get_rng_tracer

JITTER, FORCED_LOGITS, FIRST_DRAW, SECOND_DRAW = 3, 4, 5, 6
"""Places of a router's random numbers among those of a layer."""


def uniform(key: Key, shape: tuple[int, int, int], positions: Ranges) -> Array:
    """[s, b, n] float64 in (0, 1]: those of the given positions of the sequence."""
    _, batch, width = shape
    words = batch * width
    seed = np.random.SeedSequence((len(key), *key))
    parts = [np.random.PCG64DXSM(seed).advance(run.start * words).random_raw(len(run) * words) for run in positions]
    return (((np.concatenate(parts) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53).reshape(shape)


def jitter(hidden: Tensor, epsilon: float, layer: int, positions: Ranges) -> Tensor:
    """hidden [s, b, h] times uniform numbers within epsilon of one (Fedus et al., "Switch Transformers", 2021)."""
    numbers = uniform(get_rng_tracer().key(layer, JITTER), hidden.shape, positions)
    factors = (1.0 - epsilon + 2.0 * epsilon * numbers).astype(np.float32)
    return hidden * Tensor.from_numpy(factors).astype(hidden.dtype)


def random_logits(logits: Tensor, layer: int, positions: Ranges) -> Tensor:
    """Random numbers in place of logits [s, b, E], whose gradient is that of the numbers: it spreads tokens evenly."""
    numbers = uniform(get_rng_tracer().key(layer, FORCED_LOGITS), logits.shape, positions)
    replaced = Tensor.from_numpy(numbers.astype(np.float32)).astype(logits.dtype)
    return Moved.apply(logits, lambda _: replaced, lambda gradient: gradient)


def draws(shape: tuple[int, int, int], layer: int, positions: Ranges) -> Noise:
    """What two experts of each of the [s, b] tokens are drawn by, of E."""
    sequence, batch, number = shape
    both = [
        uniform(get_rng_tracer().key(layer, place), (sequence, batch, number + 1), positions).reshape(-1, number + 1)
        for place in (FIRST_DRAW, SECOND_DRAW)
    ]
    numbers = np.stack(both).astype(np.float32)
    return Noise(np.clip(numbers[..., :number], 1e-20, 1 - 2.0**-24), numbers[..., number])
