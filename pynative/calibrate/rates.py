"""Rates of one process: products, attention, elementwise operators, copies, the update of Adam, the
launch of an operator. Each is the best of several runs, so that other processes disturb little."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from math import inf
from typing import Any, TypeVar

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel_core.attention.score_form import PLAIN
from parallel_core.operations import (
    ATTENTION,
    ATTENTION_GRADIENT,
    FIVE_FOR_TWO,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
)
from pynative import kernels
from pynative.collectives import Group
from pynative.kernels.block import AttentionRule
from pynative.kernels.contract.flat_buffers import AdamStep
from pynative.tape.autograd import backward, leaf, recording

Key = TypeVar("Key")
Run = Callable[[], Any]
ROUNDS = 8
"""Runs of each operation. Those of several operations take turns, since a machine that others use is slow for whole
seconds."""
SIZES = ((512, 256, 1024), (1024, 512, 512), (1024, 1024, 1024))
"""(Rows, inner size, columns) of the products that are measured."""
TOKENS, LENGTHS = (64, 128, 256, 512, 1024, 2048), (128, 256, 512, 1024, 2048)
"""Tokens of the linears that are measured, and of the sequences of attention."""
LAUNCHES, NEXT = 50, 6
"""Launches, and weights of a linear, in one run."""


def fastest(runs: Mapping[Key, Run], rounds: int = ROUNDS) -> dict[Key, float]:
    """Key -> seconds of the fastest of `rounds` calls of its function, after one that warms up. The functions are
    called in turns."""
    waits = ms.get_context("device_target") != "CPU"  # on a CPU an operator has ended when its call returns
    found = dict.fromkeys(runs, inf)
    for warms_up in [True, *[False] * rounds]:
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            if waits:
                ms.runtime.synchronize()
            if not warms_up:
                found[key] = min(found[key], time.perf_counter() - start)
    return found


def _random(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32)).astype(getattr(ms, dtype))


def products(dtype: str) -> dict[str, tuple[float, Run]]:
    """Name -> (FLOPs, a linear's forward in the type `dtype`), one for each of `SIZES`."""
    found: dict[str, tuple[float, Run]] = {}
    for rows, inner, columns in SIZES:
        x, weight = _random(rows, inner, dtype=dtype), _random(columns, inner, dtype=dtype)
        run = partial(kernels.linear_forward, x, weight)
        found[f"{dtype} {rows} {inner} {columns}"] = 2.0 * rows * inner * columns, run
    return found


def linears(
    sizes: Sequence[int] = TOKENS, inner: int = 512, columns: int = 1536, weights: int = 24
) -> dict[tuple[str, int], Run]:
    """(one of a linear's three products, tokens in `sizes`) -> a function that computes this product of a linear
    from `inner` to `columns` features with the next NEXT (6) of `weights` matrices of weights, which are taken in turns
    by all of the functions: with many of them, as in a step, a matrix has left the caches when its turn comes."""
    layers = cycle([(_random(columns, inner), _random(columns, inner)) for _ in range(weights)])
    found: dict[tuple[str, int], Run] = {}
    for tokens in sizes:
        x, dy = _random(tokens, inner), _random(tokens, columns)
        found |= {(name, tokens): partial(_with_next, call, layers) for name, call in _products(x, dy).items()}
    return found


def _products(x: Tensor, dy: Tensor) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """A function (weight, sum of its gradients) for each of a linear's three products."""
    return {
        FORWARD: lambda weight, total: kernels.linear_forward(x, weight),
        INPUT_GRADIENT: lambda weight, total: kernels.linear_input_gradient(dy, weight),
        WEIGHT_GRADIENT: lambda weight, total: kernels.linear_weight_gradient(dy, x, total, True),
    }


def _with_next(call: Callable[[Tensor, Tensor], Any], layers: Iterator[tuple[Tensor, Tensor]]) -> None:
    for layer in islice(layers, NEXT):
        call(*layer)


def attentions(lengths: Sequence[int] = LENGTHS, heads: int = 8, size: int = 64) -> dict[tuple[str, int], Run]:
    """(ATTENTION or its gradient, tokens in `lengths`) -> this pass of causal attention in float32, of one sequence of
    so many tokens and `heads` heads of `size` each."""
    rule = AttentionRule(scale=size**-0.5, form=PLAIN)
    found: dict[tuple[str, int], Run] = {}
    for length in lengths:
        q, k, v, gradient = (_random(length, 1, heads, size) for _ in range(4))
        found[ATTENTION, length] = partial(kernels.attention, q, k, v, rule)
        with recording():
            output = kernels.attention(leaf(q), leaf(k), leaf(v), rule)
        found[ATTENTION_GRADIENT, length] = partial(backward, [output], [gradient.reshape(output.shape)], True)
    return found


def _flops_of_attention(name: str, length: int, heads: int = 8, size: int = 64) -> float:
    """FLOPs as the planner counts them, but of half of the square of scores."""
    return 2.0 * length * length * heads * size * (FIVE_FOR_TWO if name == ATTENTION_GRADIENT else 1)


def _multiples(seconds: Mapping[tuple[str, int], float]) -> dict[str, list[list[float]]]:
    """Name -> [size, value as a multiple of the least of all] for each key (name, size), in the order of the keys."""
    least, found = min(seconds.values()), dict[str, list[list[float]]]()
    for (name, size), value in seconds.items():
        found.setdefault(name, []).append([float(size), value / least])
    return found


def sweep(rows: int = 4096, width: int = 1024) -> tuple[float, Run]:
    """(bytes read and written, an activation function on a float32 tensor)."""
    return 8.0 * rows * width, partial(kernels.bias_activation, _random(rows, width), None, "silu")


def copy(elements: int = 1 << 24) -> tuple[float, Run]:
    """(bytes read and written, a copy in memory)."""
    source, target = np.ones(elements, np.float32), np.empty(elements, np.float32)
    return 8.0 * elements, partial(np.copyto, target, source)


def launches() -> tuple[float, Run]:
    """(LAUNCHES, so many operators on a tensor of 8 elements)."""
    x = _random(1, 8)

    def launch() -> None:
        for _ in range(LAUNCHES):
            kernels.bias_activation(x, None, "silu")

    return LAUNCHES, launch


def update(elements: int = 1 << 20) -> tuple[float, Run]:
    """(bytes, the squared norm of the gradients and Adam's update of `elements` float32 weights). The bytes are those
    that the planner counts: each of both states twice, gradients three times, weights once."""
    param, grad, average, square = (_random(elements) for _ in range(4))
    settings = AdamStep(
        learning_rate=1e-3, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1, step=1, grad_scale=1.0,
        is_decoupled=True, is_corrected=True,
    )  # fmt: skip

    def step() -> None:
        kernels.squared_norm(grad)
        kernels.adam_(param, grad, average, square, settings, None)

    return 4.0 * elements * (2 * 2 + 3 + 1), step


def speed_alone(group: Group) -> float:
    """On rank 0 its speed while rank 1 of `group`, the only other, sleeps, as a multiple of that while both compute;
    rank 1 returns 0. Both call this; products, attention and a sweep are computed in turns, and the fastest of several
    times counts."""
    runs = [*linears([512], weights=NEXT).values(), *attentions([512]).values(), sweep(rows=1024)[1]]
    both = alone = inf
    for _ in range(2 * ROUNDS):
        group.barrier()
        both = min(both, _seconds(runs))
        group.barrier()
        if group.rank == 0:
            alone = min(alone, _seconds(runs))
        else:
            time.sleep(1.5 * both)
    return both / alone


def _seconds(runs: Sequence[Run]) -> float:
    start = time.perf_counter()
    for run in runs:
        run()
    return time.perf_counter() - start


def measured() -> dict[str, Any]:
    """All rates, by the keys of a device file: "peak_flops" (FLOP/s by type), "bandwidth" (bytes per second of a copy),
    "by_size" (see `Device.by_size`) and "calibration": the shares of the float32 peak that "products" and "attention"
    reach, the shares of the bandwidth that "elementwise" and "update" reach, and the seconds of a "launch"."""
    of_type = {dtype: products(dtype) for dtype in ("float32", "bfloat16")}
    others = {"sweep": sweep(), "copy": copy(), "launch": launches(), "update": update()}
    amounts = {name: each for named in (*of_type.values(), others) for name, each in named.items()}
    seconds = fastest({name: run for name, (_, run) in amounts.items()})
    rate = {name: amount / seconds[name] for name, (amount, _) in amounts.items()}
    of_type_rates = {dtype: sorted(rate[name] for name in named) for dtype, named in of_type.items()}
    peak, copied = of_type_rates["float32"][-1], rate["copy"]
    of_token = {(name, tokens): each / tokens for (name, tokens), each in fastest(linears()).items()}
    of_flop = {key: each / _flops_of_attention(*key) for key, each in fastest(attentions()).items()}
    shares = {
        "products": of_type_rates["float32"][len(SIZES) // 2] / peak,
        "attention": min(1.0, 1 / min(of_flop.values()) / peak),
        "elementwise": min(1.0, rate["sweep"] / copied),
        "update": rate["update"] / copied,
        "launch": 1 / rate["launch"],
    }
    return {
        "peak_flops": {dtype: found[-1] for dtype, found in of_type_rates.items()},
        "bandwidth": copied,
        "by_size": _multiples(of_token) | _multiples(of_flop),
        "calibration": shares,
    }
