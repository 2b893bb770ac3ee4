"""Measure the machine that this runs on, and write it as a device file for `plan --device FILE`.

    python -m mapping plan --calibrate FILE.yaml

Two processes of one thread each compute at once, as the ranks of a job do, and send messages to each other.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import psutil

from parallel_core.findings import ConfigError
from parallel_core.planner import find_device
from parallel_core.system.files import replacing
from pynative import kernels
from pynative.calibrate import messages, rates
from pynative.collectives import connect

RANKS, SECONDS = 2, 300
MEASURES = "--measure"
RESULT = "MEASURED "


def measure() -> None:
    """Measure as one of the ranks, which the environment numbers; the first one prints what both found."""
    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    kernels.use(threads=1)
    backend = connect()
    backend.world.barrier()
    found = rates.measured()
    found["messages"] = messages.measured(backend.world)
    if backend.rank == 0:
        print(RESULT + json.dumps(found), flush=True)
    backend.close()


def measured() -> dict[str, Any]:
    """Measure with ranks that are started here. Raises RuntimeError if one fails."""
    job = {
        "RANK_SIZE": str(RANKS),
        "MS_SCHED_PORT": f"calibration-{os.getpid()}",
        "GLOG_v": "3",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pynative.calibrate", MEASURES]
    started = [
        subprocess.Popen(command, env={**os.environ, **job, "RANK_ID": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    results = [line.removeprefix(RESULT) for line in said[0].splitlines() if line.startswith(RESULT)]
    if any(process.returncode for process in started) or not results:
        raise RuntimeError("a process that measures has failed; see above")
    return json.loads(results[0])


def device_of(found: dict[str, Any]) -> dict[str, Any]:
    """The keys of a device file."""
    assumed = {"inside_share": 1.0, "between_share": 0.8, "congestion": 0.2}
    most = max(points[-1][0] / points[-1][1] for points in found["messages"].values())
    return {
        "names": ["CPU"],
        "memory_bytes": float(psutil.virtual_memory().total),
        "reserved_bytes": 0.5e9,
        "peak_flops": found["peak_flops"],
        "bandwidth": found["bandwidth"],
        "devices_per_node": psutil.cpu_count() or 1,
        "inside": {"bandwidth": most, "latency": found["messages"]["send"][0][1]},
        "between": {"bandwidth": 1.25e9, "latency": 100e-6},
        "engine": "pynative",
        "fuses_attention": True,
        "messages": found["messages"],
        "calibration": {
            **found["calibration"],
            **assumed,
            "ranges": {"memory": 0.1, "time": 0.5},
            "source": "plan --calibrate, two processes of one thread",
        },
        "assumed": ["between_share", "congestion"],
    }


def main(argv: Sequence[str]) -> int:
    """Measure, write the file, and read it again; the exit code."""
    import yaml

    if [*argv] == [MEASURES]:
        measure()
        return 0
    if len(argv) != 1 or Path(argv[0]).suffix != ".yaml":
        print(f"error: --calibrate {' '.join(argv)}: needs one file that ends in .yaml", file=sys.stderr)
        return 2
    try:
        text = yaml.safe_dump(device_of(measured()), sort_keys=False)
        with replacing(argv[0]) as file:
            file.write(text.encode("utf-8"))
        device = find_device(argv[0])
    except (RuntimeError, ConfigError, OSError) as error:
        print(f"error: --calibrate {argv[0]}: {error}", file=sys.stderr)
        return 1
    least = {name: f"{points[0][1] * 1e6:,.0f}" for name, points in device.messages.items()}
    words = ", ".join(f"{name} {microseconds}" for name, microseconds in least.items())
    print(
        f"{argv[0]}: {device.peak('float32') / 1e9:,.1f} GFLOP/s in float32; smallest messages, microseconds: {words}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
