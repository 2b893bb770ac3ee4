"""Measure the machine that this runs on, and write it as a device file for `plan --device FILE`.

    python -m mapping plan --calibrate FILE.yaml

Two processes of one thread each compute at once, as the ranks of a job do, and send messages to each other. Then small
models of several proportions are trained, and the rates are corrected so that the planner's times of these trainings
come close to those that they took.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import psutil
import yaml

from parallel_core.planner import find_device
from parallel_core.planner.device import Device, device_file
from parallel_core.planner.recorded import joined, read_run
from parallel_core.planner.refine import refined
from parallel_core.system.files import replacing
from pynative import kernels
from pynative.calibrate import messages, rates
from pynative.calibrate.training import MODELS, train
from pynative.collectives import connect

SECONDS, MOST_RANKS = 600, 64
"""The most seconds that a calibration's processes may take; the ranks of a node in the device file, more than a job
has, since all of a job's are on this machine."""
MEASUREMENTS = 16
"""Runs of each operation. Those of several operations take turns, since a machine that others use is slow for whole
seconds."""
STEPS, ROUNDS = 12, 2
"""Steps of each training, and trainings of each model, which take turns. The middle half of a model's steps by length
counts: a machine that others use changes its speed within a second."""
MEASURES, TRAINS = "--measure", "--train"
RESULT = "MEASURED "
SOURCE, TIME_RANGE = "plan --calibrate, two processes of one thread", 0.25
"""Source and relative uncertainty of times in the device file; experts' uneven rows and changes of the machine's
speed are in no rate."""


def measure(rounds: int) -> None:
    """Measure rates, each operation `rounds` times, and messages as one of two ranks, numbered by the environment; rank
    0 prints the result as a line, "MEASURED " and JSON."""
    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    kernels.use(threads=1)
    backend = connect()
    backend.world.barrier()
    found = rates.measured(rounds)
    found["calibration"] |= {"alone": rates.speed_alone(backend.world, 2 * rounds), **rates.after_waits(rounds)}
    found["messages"] = messages.measured(backend.world)
    if backend.rank == 0:
        print(RESULT + json.dumps(found), flush=True)
    backend.close()


def _ranks(words: Sequence[str]) -> str:
    """The standard output of rank 0 of two processes that run this module with these arguments. Raises RuntimeError if
    one fails or takes longer than SECONDS."""
    job = {
        "RANK_SIZE": "2",
        "MS_SCHED_PORT": f"calibration-{words[0].strip('-')}-{os.getpid()}",
        "GLOG_v": "3",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pynative.calibrate", *words]
    started = [
        subprocess.Popen(command, env={**os.environ, **job, "RANK_ID": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in started]
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"a process that measures takes longer than {SECONDS} s, and was ended") from error
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        raise RuntimeError("a process that measures has failed; see above")
    return said[0]


def measured() -> dict[str, Any]:
    """The rates and message times of this machine, measured by two processes, by the keys of a device file (those of
    `rates.measured`, and "messages"). Raises RuntimeError if a process fails or takes too long."""
    results = [
        line.removeprefix(RESULT)
        for line in _ranks([MEASURES, str(MEASUREMENTS)]).splitlines()
        if line.startswith(RESULT)
    ]
    return json.loads(results[0])


def train_models(folder: str, rounds: int) -> None:
    """Train the small models `rounds` times in turns, in two processes; the traces are left in folder/model/round.
    Raises RuntimeError if a process fails or takes too long."""
    _ranks([TRAINS, folder, str(STEPS), str(rounds)])


def fitted(device: Device, folders: Sequence[str]) -> Device:
    """A copy of the device, its rates refined so that the planner's times of the small models come close to those of
    their trainings in all `folders`, as `train_models` leaves them. Raises ValueError or OSError for a run whose files
    cannot be read."""
    runs = [[read_run(run) for folder in folders for run in Path(folder, model).iterdir()] for model in MODELS]
    found = refined(device, [joined(of_model) for of_model in runs])
    old = found.calibration
    return replace(found, calibration=replace(old, source=SOURCE, ranges=replace(old.ranges, time=TIME_RANGE)))


def trained(device: Device) -> Device:
    """`fitted` to trainings that are run here; raises as that and as `train_models`."""
    with tempfile.TemporaryDirectory() as folder:
        train_models(folder, ROUNDS)
        return fitted(device, [folder])


def device_of(found: dict[str, Any]) -> dict[str, Any]:
    """The content of a device file, by key: what `measured` found, this host's memory, the number of cores that this
    process may use, and assumptions."""
    assumed = {"inside_share": 1.0, "between_share": 0.8, "congestion": 0.2}
    most = max(points[-1][0] / points[-1][1] for points in found["messages"].values())
    return {
        "names": ["CPU"],
        "memory_bytes": float(psutil.virtual_memory().total),
        "reserved_bytes": 0.5e9,
        "peak_flops": found["peak_flops"],
        "bandwidth": found["bandwidth"],
        "devices_per_node": MOST_RANKS,
        "cores": len(os.sched_getaffinity(0)),
        "inside": {"bandwidth": most, "latency": found["messages"]["send"][0][1]},
        "between": {"bandwidth": 1.25e9, "latency": 100e-6},
        "engine": "pynative",
        "fuses_attention": True,
        "messages": found["messages"],
        "by_size": found["by_size"],
        "launch_flops": found["launch_flops"],
        "calibration": {
            **found["calibration"],
            **assumed,
            "ranges": {"memory": 0.1, "time": TIME_RANGE},
            "source": SOURCE,
        },
        "assumed": ["between_share", "congestion"],
    }


def write(keys: dict[str, Any], path: str) -> None:
    """Write the content of a device file as YAML, atomically."""
    with replacing(path) as file:
        file.write(yaml.safe_dump(keys, sort_keys=False).encode("utf-8"))


def main(argv: Sequence[str]) -> int:
    """Measure this machine, write the device file that `argv` names (.yaml), refine it by short trainings, and write it
    again. Returns the exit code: 0, or with the error on stderr 2 for other arguments, 1 after a RuntimeError,
    ValueError or OSError. `--measure ROUNDS` and `--train FOLDER STEPS ROUNDS` are what the processes that this
    starts are called with."""
    if len(argv) == 2 and argv[0] == MEASURES:
        measure(int(argv[1]))
        return 0
    if len(argv) == 4 and argv[0] == TRAINS:
        train(Path(argv[1]), *map(int, argv[2:]))
        return 0
    if len(argv) != 1 or Path(argv[0]).suffix != ".yaml":
        print(f"error: --calibrate {' '.join(argv)}: needs one file that ends in .yaml", file=sys.stderr)
        return 2
    try:
        write(device_of(measured()), argv[0])
        device = trained(find_device(argv[0]))
        write(device_file(device), argv[0])
    except (RuntimeError, ValueError, OSError) as error:
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
