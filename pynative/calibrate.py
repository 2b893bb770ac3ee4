"""Measure the machine that this runs on, and write it as a device file for `plan --device FILE`.

    python -m mapping plan --calibrate FILE.yaml

One process on one thread: products, attention, elementwise sweeps, and the start of an operation. Each is the best of
several runs, so that others on the machine disturb little. Messages between processes are not measured.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import psutil
from mindspore import Tensor

from parallel_core.attention.score_form import PLAIN
from parallel_core.findings import ConfigError
from parallel_core.planner import find_device
from parallel_core.system.files import replacing
from pynative import kernels
from pynative.kernels.block import AttentionRule

ROUNDS = 7
SIZES = ((512, 256, 1024), (1024, 512, 512), (1024, 1024, 1024))
"""Rows, inner size and columns of the products that are measured."""


def fastest(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of the best of several runs, after one that warms up."""
    waits = ms.get_context("device_target") != "CPU"  # a processor's operations have ended when they return
    run()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        if waits:
            ms.runtime.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def _random(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


def product_rates() -> list[float]:
    """FLOP/s of a linear's forward at each size."""
    found = []
    for rows, inner, columns in SIZES:
        x, weight = _random(rows, inner), _random(columns, inner)
        seconds = fastest(lambda x=x, weight=weight: kernels.linear_forward(x, weight))  # type: ignore[misc]
        found.append(2.0 * rows * inner * columns / seconds)
    return found


def attention_rate(length: int = 512, heads: int = 8, size: int = 64) -> float:
    """FLOP/s of causal attention, counted with half of the square."""
    q, k, v = (_random(length, 1, heads, size) for _ in range(3))
    rule = AttentionRule(scale=size**-0.5, form=PLAIN)
    return 2.0 * length * length * heads * size / fastest(lambda: kernels.attention(q, k, v, rule))


def sweep_rate(rows: int = 4096, width: int = 1024) -> float:
    """Bytes a second of an activation function's sweep, read and written."""
    x = _random(rows, width)
    return 8.0 * rows * width / fastest(lambda: kernels.bias_activation(x, None, "silu"))


def copy_rate(elements: int = 1 << 24) -> float:
    """Bytes a second of a copy in memory, read and written."""
    source, target = np.ones(elements, np.float32), np.empty(elements, np.float32)
    return 8.0 * elements / fastest(lambda: np.copyto(target, source))


def launch_seconds() -> float:
    """Of an operation on next to nothing."""
    x = _random(1, 8)
    return fastest(lambda: kernels.bias_activation(x, None, "silu"), 200)


def measured() -> dict[str, Any]:
    """The keys of a device file."""
    kernels.use(threads=1)
    products, copied, host = product_rates(), copy_rate(), psutil.virtual_memory().total
    peak = max(products)
    link = {"bandwidth": copied, "latency": 20e-6}
    return {
        "names": ["CPU"], "memory_bytes": float(host), "reserved_bytes": 0.5e9, "peak_flops": {"float32": peak},
        "bandwidth": copied, "devices_per_node": psutil.cpu_count() or 1, "inside": link,
        "between": {"bandwidth": 1.25e9, "latency": 100e-6}, "engine": "pynative", "fuses_attention": True,
        "calibration": {
            "products": sorted(products)[len(products) // 2] / peak, "attention": min(1.0, attention_rate() / peak),
            "elementwise": min(1.0, sweep_rate() / copied), "inside_share": 0.5, "between_share": 0.8,
            "congestion": 0.2, "launch": launch_seconds(), "ranges": {"memory": 0.1, "time": 0.5},
            "source": "plan --calibrate, one process on one thread",
        },
        "assumed": ["inside_share", "between_share", "congestion"],
    }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Measure, write the file, and read it again; the exit code."""
    import yaml

    if len(argv) != 1 or Path(argv[0]).suffix != ".yaml":
        print(f"error: --calibrate {' '.join(argv)}: needs one file that ends in .yaml", file=sys.stderr)
        return 2
    with replacing(argv[0]) as file:
        file.write(yaml.safe_dump(measured(), sort_keys=False).encode("utf-8"))
    try:
        print(f"{argv[0]}: {find_device(argv[0]).peak('float32') / 1e9:,.1f} GFLOP/s in float32")
    except ConfigError as error:
        print(f"error: the measurement makes no device: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
