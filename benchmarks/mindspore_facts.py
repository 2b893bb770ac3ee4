"""Facts about MindSpore on a CPU that docs/mindspore.md states, tried on this machine.

    python benchmarks/mindspore_facts.py [--only NAME ...]

Prints a line for each: its name, whether it still holds in the installed version, and the measured value. Times are the
least of several runs. Exit code 1 if a fact no longer holds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel_core.system.command_line import command_line

Fact = tuple[bool, str]
"""(whether the fact holds, the measured value in words)."""


def _tensor(ms: Any, values: object, kind: object = np.float32) -> Any:
    return ms.Tensor(np.asarray(values, kind))


def microseconds(call: Callable[[], object], runs: int = 30) -> float:
    """Microseconds of the fastest of several calls of an operator, until its result is there."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e6


def in_place(ms: Any) -> Fact:
    """In-place arithmetic leaves the tensor as it was."""
    x = _tensor(ms, [1.0, 2.0])
    x.add_(_tensor(ms, [1.0, 1.0]))
    return x.asnumpy().tolist() == [1.0, 2.0], f"[1, 2] after add_(1): {x.asnumpy().tolist()}"


def copied_view(ms: Any) -> Fact:
    """`asnumpy()` of a view is a copy."""
    x = _tensor(ms, [[1.0, 2.0], [3.0, 4.0]])
    array = x[:, 1].asnumpy()
    return not np.shares_memory(array, x.asnumpy()), "memory of a column's asnumpy() is its own"


def set_data(ms: Any) -> Fact:
    """`Parameter.set_data` of another type copies."""
    parameter, other = ms.Parameter(_tensor(ms, [1.0, 2.0]), name="w"), _tensor(ms, [3.0, 4.0], np.float16)
    parameter.set_data(other)
    return parameter.data_ptr() != other.data_ptr(), "its memory is not the given tensor's"


def lost_nan(ms: Any) -> Fact:
    """`relu`, `maximum(x, 0)` and `clamp` turn NaN into a number; `maximum(0, x)` keeps NaN."""
    x, zero = _tensor(ms, [np.nan]), _tensor(ms, [0.0])
    found = {
        "relu": ms.ops.relu(x),
        "maximum(x, 0)": ms.ops.maximum(x, zero),
        "clamp": ms.ops.clamp(x, 0.0, 1.0),
        "maximum(0, x)": ms.ops.maximum(zero, x),
    }
    values = {name: float(y.asnumpy()[0]) for name, y in found.items()}
    *lost, kept = values.values()
    return not np.isnan(lost).any() and bool(np.isnan(kept)), ", ".join(f"{k}: {v:g}" for k, v in values.items())


def tanh_error(ms: Any) -> Fact:
    """`tanh` is off where it saturates, `sigmoid` is not."""
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    exact = x.astype(np.float64)
    errors = [
        float(np.abs(got(ms.Tensor(x)).asnumpy() - want).max())
        for got, want in ((ms.ops.tanh, np.tanh(exact)), (ms.ops.sigmoid, 1 / (1 + np.exp(-exact))))
    ]
    return errors[0] > 1e-5 > errors[1], f"largest error of tanh {errors[0]:.1e}, of sigmoid {errors[1]:.1e}"


def cast_time(ms: Any) -> Fact:
    """A cast takes as long for a few elements as a product of many."""
    small, large = _tensor(ms, np.ones(8)), _tensor(ms, np.ones(100_000))
    cast = microseconds(lambda: ms.ops.cast(small, ms.float16).asnumpy())
    product = microseconds(lambda: ms.ops.mul(large, large).asnumpy())
    return cast > product, f"cast of 8 elements {cast:.0f} us, product of 100,000 elements {product:.0f} us"


def launch_time(ms: Any) -> Fact:
    """Calls of small operators take tens of microseconds, and those of an older interface hundreds."""
    x, scale = _tensor(ms, np.ones((8, 8))), _tensor(ms, np.ones(8))
    norm = ms.ops.LayerNorm(1, 1)
    add = microseconds(lambda: ms.ops.add(x, x), 300)
    plus = microseconds(lambda: x + x, 300)
    reshaped = microseconds(lambda: x.reshape(64), 300)
    older = microseconds(lambda: norm(x, scale, scale), 300)
    return (
        older > add,
        f"reshape {reshaped:.0f} us, ops.add {add:.0f} us, x + x {plus:.0f} us, LayerNorm {older:.0f} us",
    )


def saving(ms: Any) -> Fact:
    """Files in the safetensors format are written and read faster than those in MindSpore's own."""
    weights = [{"name": "w", "data": _tensor(ms, np.zeros(16 << 20))}]
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("safetensors", "ckpt"):
            begin = time.perf_counter()
            ms.save_checkpoint(weights, f"{folder}/x", format=kind)
            written = time.perf_counter()
            ms.load_checkpoint(f"{folder}/x.{kind}", format=kind)
            seconds[kind] = written - begin, time.perf_counter() - written
    own, other = seconds["ckpt"], seconds["safetensors"]
    words = ", ".join(f"{kind} written in {a:.2f} s, read in {b:.2f} s" for kind, (a, b) in seconds.items())
    return sum(own) > sum(other), f"64 MiB: {words}"


def import_memory(ms: Any) -> Fact:
    """Importing MindSpore takes hundreds of megabytes."""
    code = "import psutil, {}; print(psutil.Process().memory_info().rss)"
    with_it, without = (
        int(subprocess.check_output([sys.executable, "-c", code.format(name)])) for name in ("mindspore", "numpy")
    )
    return with_it - without > 100 << 20, f"{(with_it - without) >> 20} MiB beyond numpy's"


FACTS = (
    in_place, copied_view, set_data, lost_nan, tanh_error, cast_time, launch_time, saving, import_memory,
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Try the facts that are asked for; the exit code."""
    parser = command_line(__doc__)
    names = [fact.__name__ for fact in FACTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    options: argparse.Namespace = parser.parse_args(argv)
    import mindspore as ms  # takes seconds: wrong options have been reported before

    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    changed = 0
    for fact in FACTS:
        if fact.__name__ in options.only:
            holds, value = fact(ms)
            changed += not holds
            print(f"{fact.__name__:14} {'holds' if holds else 'CHANGED':8} {value}", flush=True)
    return int(changed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
