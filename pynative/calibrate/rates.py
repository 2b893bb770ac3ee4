"""Rates of one process: products, attention, elementwise operators, copies, the update of Adam, the
launch of an operator. Each is the best of several runs, so that other processes disturb little."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice, product
from math import inf
from statistics import median
from typing import Any, TypeVar

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel_core.attention.score_form import PLAIN
from parallel_core.operations import (
    ACTIVATION,
    ATTENTION,
    ATTENTION_GRADIENT,
    EMBEDDING,
    FORWARD,
    INPUT_GRADIENT,
    LOSS,
    NORM,
    RESIDUAL,
    WEIGHT_GRADIENT,
    gradient_of,
)
from pynative import kernels
from pynative.calibrate.tables import FEW, LENGTHS, MANY, SIZE, TOKENS, attention_table, multiples, of_size
from pynative.collectives import Group
from pynative.kernels.block import AttentionRule
from pynative.kernels.contract.flat_buffers import AdamStep
from pynative.tape.autograd import backward, leaf, recording, take_gradient

Key = TypeVar("Key")
Run = Callable[[], Any]
SIZES = ((512, 256, 1024), (1024, 512, 512), (1024, 1024, 1024))
"""(Rows, inner size, columns) of the products that are measured."""
LAUNCHES, NEXT = 50, 6
"""Launches, and weights of a linear, in one run."""
PAUSES = 0.02, 0.08
"""Seconds of two sleeps, about as long as waits in a pipeline of small stages."""
AWAKE, ROW = 64, 4
"""Tokens of the products that follow a sleep, and runs, each of NEXT of them, in which a process gets as fast as it was
before."""
INNER, COLUMNS = 512, 1536
"""Features of the linears that are measured, of their inputs and of their outputs."""
FLOPS_OF_TOKEN = 2.0 * INNER * COLUMNS
"""FLOPs of one of a linear's products for a token."""


def fastest(runs: Mapping[Key, Run], rounds: int, before: Run | None = None) -> dict[Key, float]:
    """Key -> seconds of the fastest of `rounds` calls of its function, after one that warms up. The functions are
    called in turns; before: called before each of them, its seconds do not count."""
    waits = ms.get_context("device_target") != "CPU"  # on a CPU an operator has ended when its call returns
    found = dict.fromkeys(runs, inf)
    for warms_up in [True, *[False] * rounds]:
        for key, run in runs.items():
            if before is not None:
                before()
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
    sizes: Sequence[int] = TOKENS, inner: int = INNER, columns: int = COLUMNS, weights: int = 24
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


def attentions(
    lengths: Sequence[int] = LENGTHS, counts: Sequence[int] = (FEW, MANY)
) -> dict[tuple[str, int, int], Run]:
    """(ATTENTION or its gradient, tokens in `lengths`, heads in `counts`) -> this pass of causal attention in float32,
    of one sequence of so many tokens and so many heads of SIZE (64) channels each, from rows that have a head's query,
    key and value side by side."""
    rule = AttentionRule(scale=SIZE**-0.5, form=PLAIN)
    found: dict[tuple[str, int, int], Run] = {}
    for length, heads in product(lengths, counts):
        qkv = _random(length, 1, 3 * heads * SIZE)
        passes = _both(lambda qkv, heads=heads: kernels.attention(*kernels.split_qkv(qkv, heads, 1, SIZE), rule), qkv)
        found |= {(ATTENTION, length, heads): passes[0], (ATTENTION_GRADIENT, length, heads): passes[1]}
    return found


def sweeps(sizes: Sequence[int] = TOKENS, hidden: int = 512, wide: int = 4096) -> dict[tuple[str, float], Run]:
    """(one of NORM, ACTIVATION, RESIDUAL, LOSS, EMBEDDING, or its gradient, bytes as the planner counts them for so
    many tokens as `sizes` has) -> this pass of the operator in float32 on `hidden` features of each token, or `wide`
    ones for the activation (SwiGLU) and the loss. Not the residual's gradient, which is that of the sum as it is."""
    found: dict[tuple[str, float], Run] = {}
    for tokens in sizes:
        x, weight = _random(tokens, 1, hidden), _random(hidden)
        gate_and_up, logits = _random(tokens, 1, wide), _random(tokens, 1, wide)
        target = ms.from_numpy(np.arange(tokens, dtype=np.int32).reshape(tokens, 1))
        maximum, total, _ = kernels.softmax_statistics(logits, target)
        added = ms.from_numpy(np.stack([total.asnumpy(), np.zeros((tokens, 1), np.float32)]))
        norm = _both(lambda x, weight: kernels.rms_norm(x, weight, 1e-5), x, weight)
        activation = _both(lambda x: kernels.bias_activation(x, None, "swiglu"), gate_and_up)
        embedding = _both(partial(kernels.embedding, target), _random(tokens, hidden))
        narrow, broad = 4.0 * tokens * hidden, 4.0 * tokens * wide
        found |= {
            (NORM, 2 * narrow): norm[0],
            (gradient_of(NORM), 3 * narrow): norm[1],
            (ACTIVATION, 1.5 * broad): activation[0],
            (gradient_of(ACTIVATION), 2.5 * broad): activation[1],
            (RESIDUAL, 3 * narrow): partial(kernels.bias_dropout_add, x, None, _random(tokens, 1, hidden)),
            (EMBEDDING, 2 * narrow): embedding[0],
            (gradient_of(EMBEDDING), 4 * narrow): embedding[1],
            (LOSS, 2 * broad): partial(kernels.softmax_statistics, logits, target),
            (gradient_of(LOSS), 2 * broad): partial(
                kernels.cross_entropy_gradient,
                _random(tokens, 1, wide),
                maximum,
                added,
                target,
                0,
                _random(tokens, 1),
                True,
            ),
        }
    return found


def _both(call: Callable[..., Any], *inputs: Tensor) -> tuple[Run, Run]:
    """The forward of a recorded operator, and its backward, whose gradients are thrown away."""
    leaves = [leaf(x) for x in inputs]
    with recording():
        output = call(*leaves)
    gradient = _random(*output.shape)

    def back() -> None:
        backward([output], [gradient], True)
        for one in leaves:  # a second gradient would be added to the first
            take_gradient(one)

    return partial(call, *inputs), back


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
    """(bytes, the check and the squared norm of the gradients, and Adam's update, of `elements` float32 weights). The
    bytes are those that the planner counts: each of both states twice, gradients three times, weights once."""
    param, grad, average, square = (_random(elements) for _ in range(4))
    settings = AdamStep(
        learning_rate=1e-3, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1, step=1, grad_scale=1.0,
        is_decoupled=True, is_corrected=True,
    )  # fmt: skip

    def step() -> None:
        kernels.all_finite(grad)
        kernels.squared_norm(grad)
        kernels.adam_(param, grad, average, square, settings, None)

    return 4.0 * elements * (2 * 2 + 3 + 1), step


def speed_alone(group: Group, rounds: int) -> float:
    """On rank 0 its speed while rank 1 of `group`, the only other, sleeps, as a multiple of that while both compute;
    rank 1 returns 0. Both call this; products, attention and sweeps are computed in turns, and the fastest of `rounds`
    times counts."""
    runs = [
        call
        for few in (linears([512], weights=NEXT), attentions([512], [MANY]), sweeps([512]))
        for call in few.values()
    ]
    both = alone = inf
    for _ in range(rounds):
        group.barrier()
        both = min(both, _seconds(runs))
        group.barrier()
        if group.rank == 0:
            alone = min(alone, _seconds(runs))
        else:
            time.sleep(1.5 * both)
    return both / alone


def after_waits(rounds: int) -> dict[str, float]:
    """The seconds that a process loses after it has slept, by the keys of a calibration: "waking", as a part of those
    of the shorter of `PAUSES`, and "waking_most", the more of those after either. The first ROW runs of products after
    a sleep are compared with the ROW runs behind them, and the median of `rounds` comparisons counts."""
    run = linears([AWAKE], weights=NEXT)[FORWARD, AWAKE]
    _seconds(ROW * [run])
    lost: list[list[float]] = [[] for _ in PAUSES]
    for _ in range(rounds):
        for found, pause in zip(lost, PAUSES, strict=True):
            time.sleep(pause)
            first, last = _seconds(ROW * [run]), _seconds(ROW * [run])
            found.append(first - last)
    short, long = (max(0.0, median(each)) for each in lost)
    return {"waking": short / PAUSES[0], "waking_most": max(short, long)}


def _seconds(runs: Sequence[Run]) -> float:
    start = time.perf_counter()
    for run in runs:
        run()
    return time.perf_counter() - start


def measured(rounds: int) -> dict[str, Any]:
    """All rates, each by the fastest of `rounds` runs, by the keys of a device file: "peak_flops" (FLOP/s by type),
    "bandwidth" (bytes per second of a copy), "by_size", "launch_flops" (see `Device`) and "calibration": the shares of
    the float32 peak that "products" and "attention" reach, the shares of the bandwidth that "elementwise" (the median
    of the measured operators, at their largest size) and "update" reach, and the seconds of a "launch"."""
    of_type = {dtype: products(dtype) for dtype in ("float32", "bfloat16")}
    others = {"copy": copy(), "launch": launches(), "update": update()}
    amounts = {name: each for named in (*of_type.values(), others) for name, each in named.items()}
    seconds = fastest({name: run for name, (_, run) in amounts.items()}, rounds)
    rate = {name: amount / seconds[name] for name, (amount, _) in amounts.items()}
    peaks = {dtype: max(rate[name] for name in named) for dtype, named in of_type.items()}
    launch, copied, peak = 1 / rate["launch"], rate["copy"], peaks["float32"]
    of_linear = {key: each / NEXT for key, each in fastest(linears(), rounds).items()}
    of_token, of_byte = of_size(of_linear, launch), of_size(fastest(sweeps(), rounds, others["copy"][1]), launch)
    of_largest = {name: each for (name, _), each in of_byte.items()}  # sizes rise, and the last one stays
    token, byte = max(min(of_token.values()), FLOPS_OF_TOKEN / peak), median(of_largest.values())
    attention = attention_table(fastest(attentions(), rounds), launch, peak)
    shares = {
        "products": FLOPS_OF_TOKEN / token / peak,
        "attention": attention["share"],
        "elementwise": 1 / byte / copied,
        "update": rate["update"] / copied,
        "launch": launch,
    }
    return {
        "peak_flops": peaks,
        "bandwidth": copied,
        "by_size": multiples(of_token, token) | attention["by_size"] | multiples(of_byte, byte),
        "launch_flops": attention["launch_flops"],
        "calibration": shares,
    }
