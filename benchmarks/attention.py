"""Causal attention at growing lengths and equal tokens, forward and backward: JSON lines.

    python benchmarks/attention.py --threads 1 --precision bf16 [--peer-python OTHER/bin/python]

8 heads of 64. `fraction_of_products` is the time that the products below the diagonal alone (two forward, five
backward) would take at the speed of a large product of the type, divided by the time it took. With an interpreter that
has torch, each length is followed by that of torch's `scaled_dot_product_attention`, and by how many times as long
that takes. `packed_ratio` is how many times as long N such sequences take that are packed into one with `--documents N`
and do not see each other. One thread: processor time, which other work on the machine disturbs least; more: time.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel_core.system.command_line import command_line
from pynative.kernels.block import AttentionRule

HEADS, HEAD_SIZE = 8, 64
PRODUCTS = {"forward": 2, "backward": 5}
TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="of a sequence")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch, at least one sequence")
    parser.add_argument("--documents", type=int, default=0, help="of a packed sequence; 0: none is packed")
    parser.add_argument("--precision", choices=tuple(TYPES), default="bf16", help="type of the tensors")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the shortest counts")
    parser.add_argument("--peer-python", help="an interpreter that has torch")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


Pass = Callable[[], object]


def shortest(passes: tuple[Pass, Pass], options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a "forward" and a "backward" by name, each the shortest of several, after one to warm up."""
    clock = process_time if options.threads == 1 else perf_counter
    durations: dict[str, list[float]] = {name: [] for name in PRODUCTS}
    for _ in range(options.repeats + 1):
        for name, action in zip(PRODUCTS, passes, strict=True):
            start = clock()
            action()
            durations[name].append(clock() - start)
    return {name: min(seconds[1:]) for name, seconds in durations.items()}


def ours(length: int, batch: int, precision: str, documents: int = 1) -> tuple[Pass, Pass]:
    """(forward, backward) by the host's operator; each row has so many documents of equal length."""
    import mindspore
    import numpy as np
    from mindspore import from_numpy

    from pynative import kernels
    from pynative.tape.autograd import backward, leaf, recording, take_gradient

    def normal(*shape: int) -> mindspore.Tensor:
        array = np.random.default_rng(0).standard_normal(shape, np.float32)
        return from_numpy(array).astype(getattr(mindspore, TYPES[precision]))

    starts = None
    if documents > 1:
        starts = np.tile(np.arange(length, dtype=np.int32) // (length // documents) * (length // documents), (batch, 1))
    inputs = [leaf(normal(length, batch, HEADS, HEAD_SIZE)) for _ in range(3)]
    gradient, results = normal(length, batch, HEADS * HEAD_SIZE), []

    def forward() -> None:
        with recording():
            results.append(kernels.attention(*inputs, AttentionRule(scale=HEAD_SIZE**-0.5, first_keys=starts)))

    def there_and_back() -> None:
        backward([results.pop()], [gradient])
        for x in inputs:
            take_gradient(x)

    return forward, there_and_back


def peers(length: int, batch: int, precision: str) -> tuple[Pass, Pass]:
    """(forward, backward) by torch."""
    import torch

    shape = (batch, HEADS, length, HEAD_SIZE)
    q, k, v, gradient = (torch.randn(shape, dtype=getattr(torch, TYPES[precision])) for _ in range(4))
    results = []
    for x in (q, k, v):
        x.requires_grad_()

    def forward() -> None:
        results.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    return forward, lambda: results.pop().backward(gradient)


def product_seconds_per_flop(precision: str, threads: int, repeats: int) -> float:
    """Seconds per FLOP of a large product in the type on `threads` threads together."""
    import numpy as np

    from pynative.dtypes import BFLOAT16
    from pynative.kernels.host.engine import ENGINE

    dtype = BFLOAT16 if precision == "bf16" else np.dtype(np.float32)
    left, right = np.ones((2048, 512), dtype), np.ones((512, 2048), dtype)
    out, durations = np.empty((2048, 2048), dtype), []
    for _ in range(repeats + 1):
        start = process_time()
        ENGINE.matmul(left, right, out)
        durations.append(process_time() - start)
    return min(durations[1:]) / (2 * 2048 * 512 * 2048) / threads


def peer_row(length: int, options: argparse.Namespace) -> dict:
    """The report's line for a length, measured by the interpreter that has torch, which runs this file."""
    command = [options.peer_python, __file__, "--as-peer", "--lengths", str(length)]
    for name in ("tokens", "precision", "threads", "repeats"):
        command += [f"--{name}", str(getattr(options, name))]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def packed_ratio(length: int, batch: int, apart: dict[str, float], options: argparse.Namespace) -> dict[str, float]:
    """The time of forward and backward with `options.documents` sequences packed into each row, over that of the same
    sequences in rows of their own (`apart`: seconds of these)."""
    count = options.documents
    packed = shortest(ours(length * count, batch // count, options.precision, count), options)
    ratio = sum(packed.values()) * batch / sum(apart.values()) / (batch // count * count)
    return {"documents": count, "packed_ratio": round(ratio, 2)}


def milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    return {f"{name}_ms": round(duration * 1e3, 2) for name, duration in seconds.items()}


def main() -> None:
    options = parse()
    if options.as_peer:
        import torch

        torch.set_num_threads(options.threads)
        length = options.lengths[0]
        passes = peers(length, max(1, options.tokens // length), options.precision)
        print(json.dumps(milliseconds(shortest(passes, options))))
        return
    from pynative import kernels
    from pynative.startup import device

    device.initialize("CPU", "host", threads=options.threads, world_size=1)
    kernels.use("host", threads=options.threads)
    speed = product_seconds_per_flop(options.precision, options.threads, options.repeats)
    for length in options.lengths:
        batch = max(1, options.documents, options.tokens // length)
        seconds = shortest(ours(length, batch, options.precision), options)
        own = speed * batch * HEADS * HEAD_SIZE * length**2  # operations of a product below the diagonal
        row = {"length": length, "batch": batch, "precision": options.precision, "threads": options.threads}
        row |= milliseconds(seconds)
        row |= {f"{name}_fraction_of_products": round(PRODUCTS[name] * own / t, 2) for name, t in seconds.items()}
        if options.documents:
            row |= packed_ratio(length, batch, seconds, options)
        if options.peer_python:
            theirs = peer_row(length, options)
            row |= {f"peer_{name}": value for name, value in theirs.items()}
            row |= {f"{name}_ratio": round(theirs[f"{name}_ms"] / (seconds[name] * 1e3), 2) for name in PRODUCTS}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
