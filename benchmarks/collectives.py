"""Speed of the collectives between the ranks of this host: one JSON line for each operation and size.

    python benchmarks/collectives.py [--ranks 2] [--operations all_reduce ...]

`microseconds` is the median of a call, `best_microseconds` the fastest, `gb_per_s` the input's bytes by the median.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel_core.system.command_line import command_line

ROOT = Path(__file__).resolve().parents[1]

SIZES = {"4KB": 4 << 10, "64KB": 64 << 10, "1MB": 1 << 20, "4MB": 4 << 20, "64MB": 64 << 20}
SECONDS_PER_CASE = 1.0


def main() -> None:
    """Start the ranks and exit with the worst of their codes; in a process that has RANK_ID be one of them."""
    arguments = parse()
    if "RANK_ID" in os.environ:
        measure_all(arguments)
        return
    common = os.environ | {
        "RANK_SIZE": str(arguments.ranks),
        "MS_SCHED_PORT": f"benchmark-{os.getpid()}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GLOG_v": "3",
    }
    command = [sys.executable, __file__, *sys.argv[1:]]
    ranks = [subprocess.Popen(command, env=common | {"RANK_ID": str(rank)}) for rank in range(arguments.ranks)]
    sys.exit(max(abs(process.wait()) for process in ranks))


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    calls = list(CALLS)
    parser.add_argument("--operations", nargs="+", default=calls, choices=calls, help="which are measured")
    return parser.parse_args()


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure all operations and sizes as one of the ranks; rank 0 prints a line for each."""
    import mindspore as ms
    import numpy as np

    from pynative.collectives import connect

    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    backend = connect()
    for operation in arguments.operations:
        for name, size in SIZES.items() if operation != "barrier" else {"0": 0}.items():
            x = ms.from_numpy(np.zeros(size // 4, np.float32))
            seconds = measure(backend.world, CALLS[operation], x)
            if backend.rank == 0:
                print(json.dumps(line(arguments, operation, name, size, seconds)), flush=True)
    backend.close()


CALLS: dict[str, Callable] = {
    "all_reduce": lambda group, x: group.all_reduce(x, out=x),
    "all_gather": lambda group, x: group.all_gather(x),
    "reduce_scatter": lambda group, x: group.reduce_scatter(x),
    "broadcast": lambda group, x: group.broadcast(x, 0),
    "all_to_all": lambda group, x: group.all_to_all(x),
    "send_recv": lambda group, x: ring(group, x),
    "barrier": lambda group, x: group.barrier(),
}


def ring(group, x) -> None:
    """Send to the next rank of the group and receive from the one before."""
    work = group.send(x, (group.rank + 1) % group.size, async_op=True)
    group.recv(x.shape, x.dtype, (group.rank - 1) % group.size)
    work.wait()


def measure(group, call: Callable, x) -> list[float]:
    """Seconds of each call of a collective on `x`; rank 0 chooses how many calls, from the time of one before them,
    which follows one to warm up."""
    import mindspore as ms

    call(group, x)
    start = time.perf_counter()
    call(group, x)
    count = int(min(1000, max(5, SECONDS_PER_CASE / (time.perf_counter() - start))))
    count = int(group.broadcast(ms.Tensor([count], ms.int32), 0).asnumpy()[0])
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call(group, x)
        seconds.append(time.perf_counter() - start)
    return seconds


def line(arguments: argparse.Namespace, operation: str, name: str, size: int, seconds: list[float]) -> dict:
    """The report's line for one operation and size; size: bytes of the input, name: the same in words."""
    return {
        "operation": operation,
        "size": name,
        "ranks": arguments.ranks,
        "calls": len(seconds),
        "microseconds": round(median(seconds) * 1e6, 1),
        "best_microseconds": round(min(seconds) * 1e6, 1),
        "gb_per_s": round(size / median(seconds) / 1e9, 3),
    }


if __name__ == "__main__":
    main()
