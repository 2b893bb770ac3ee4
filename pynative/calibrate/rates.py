"""Rates of one process: products, attention, elementwise operators, copies, the update of Adam, the
launch of an operator. Each is the best of several runs, so that other processes disturb little."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel_core.attention.score_form import PLAIN
from parallel_core.operations import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from pynative import kernels
from pynative.kernels.block import AttentionRule
from pynative.kernels.contract.flat_buffers import AdamStep

ROUNDS = 7
SIZES = ((512, 256, 1024), (1024, 512, 512), (1024, 1024, 1024))
"""(Rows, inner size, columns) of the products that are measured."""
TOKENS = (64, 128, 256, 512, 1024, 2048)
"""Tokens of the linears that are measured."""


def fastest(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of the fastest of `rounds` runs, after one that warms up."""
    waits = ms.get_context("device_target") != "CPU"  # on a CPU an operator has ended when its call returns
    run()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        if waits:
            ms.runtime.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def _random(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32)).astype(getattr(ms, dtype))


def product_rates(dtype: str) -> list[float]:
    """FLOP/s of a linear's forward in the type `dtype`, one for each of `SIZES`."""
    found = []
    for rows, inner, columns in SIZES:
        x, weight = _random(rows, inner, dtype=dtype), _random(columns, inner, dtype=dtype)
        seconds = fastest(lambda x=x, weight=weight: kernels.linear_forward(x, weight))  # type: ignore[misc]
        found.append(2.0 * rows * inner * columns / seconds)
    return found


def _products(x: Tensor, dy: Tensor) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """A function (weight, sum of its gradients) for each of a linear's three products."""
    return {
        FORWARD: lambda weight, total: kernels.linear_forward(x, weight),
        INPUT_GRADIENT: lambda weight, total: kernels.linear_input_gradient(dy, weight),
        WEIGHT_GRADIENT: lambda weight, total: kernels.linear_weight_gradient(dy, x, total, True),
    }


def _in_turn(call: Callable[[Tensor, Tensor], Any], layers: Sequence[tuple[Tensor, Tensor]]) -> None:
    for weight, total in layers:
        call(weight, total)


def linear_shares(inner: int = 512, columns: int = 1536, weights: int = 6) -> dict[str, list[list[float]]]:
    """For each of the three products of a linear from `inner` to `columns` features -> [tokens, seconds of a token as a
    multiple of the least of all three] for each of `TOKENS`; from the fastest of three runs over so many `weights` in
    turn."""
    layers = [(_random(columns, inner), _random(columns, inner)) for _ in range(weights)]
    found: dict[str, list[list[float]]] = {FORWARD: [], INPUT_GRADIENT: [], WEIGHT_GRADIENT: []}
    for tokens in TOKENS:
        x, dy = _random(tokens, inner), _random(tokens, columns)
        for name, call in _products(x, dy).items():
            seconds = fastest(partial(_in_turn, call, layers), 3) / weights
            found[name].append([float(tokens), seconds / tokens])
    least = min(seconds for points in found.values() for _, seconds in points)
    return {name: [[tokens, seconds / least] for tokens, seconds in points] for name, points in found.items()}


def attention_rate(length: int = 512, heads: int = 8, size: int = 64) -> float:
    """FLOP/s of causal attention in float32, of one sequence of `length` tokens and `heads` heads of `size` each; half
    of the square of scores is counted."""
    q, k, v = (_random(length, 1, heads, size) for _ in range(3))
    rule = AttentionRule(scale=size**-0.5, form=PLAIN)
    return 2.0 * length * length * heads * size / fastest(lambda: kernels.attention(q, k, v, rule))


def sweep_rate(rows: int = 4096, width: int = 1024) -> float:
    """Bytes per second, read and written, of an activation function on a float32 tensor."""
    x = _random(rows, width)
    return 8.0 * rows * width / fastest(lambda: kernels.bias_activation(x, None, "silu"))


def copy_rate(elements: int = 1 << 24) -> float:
    """Bytes per second, read and written, of a copy in memory."""
    source, target = np.ones(elements, np.float32), np.empty(elements, np.float32)
    return 8.0 * elements / fastest(lambda: np.copyto(target, source))


def launch_seconds() -> float:
    """Seconds of an operator on a tensor of 8 elements: the cost of a launch."""
    x = _random(1, 8)
    return fastest(lambda: kernels.bias_activation(x, None, "silu"), 200)


def update_rate(elements: int = 1 << 20) -> float:
    """Bytes per second of Adam's update, counted as the planner does: states twice, gradients three times (they are
    summed, their norm is taken), weights once."""
    param, grad, average, square = (_random(elements) for _ in range(4))
    settings = AdamStep(
        learning_rate=1e-3, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1, step=1, grad_scale=1.0,
        is_decoupled=True, is_corrected=True,
    )  # fmt: skip

    def step() -> None:
        kernels.squared_norm(grad)
        kernels.adam_(param, grad, average, square, settings, None)

    return 4.0 * elements * (2 * 2 + 3 + 1) / fastest(step)


def measured() -> dict[str, Any]:
    """All rates, by the keys of a device file: "peak_flops" (FLOP/s by type), "bandwidth" (bytes per second of a copy),
    "linear" (see `linear_shares`) and "calibration": the shares of the float32 peak that "products" and "attention"
    reach, the shares of the bandwidth that "elementwise" and "update" reach, and the seconds of a "launch"."""
    copied, products = copy_rate(), {dtype: product_rates(dtype) for dtype in ("float32", "bfloat16")}
    peaks = {dtype: max(rates) for dtype, rates in products.items()}
    rates = sorted(products["float32"])
    shares = {
        "products": rates[len(rates) // 2] / peaks["float32"],
        "attention": min(1.0, attention_rate() / peaks["float32"]),
        "elementwise": min(1.0, sweep_rate() / copied),
        "update": update_rate() / copied,
        "launch": launch_seconds(),
    }
    return {"peak_flops": peaks, "bandwidth": copied, "linear": linear_shares(), "calibration": shares}
