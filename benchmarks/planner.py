"""The planner beside this machine: a step's time, bubble and memory of 12 layouts on two ranks, predicted and measured.

    python benchmarks/planner.py [--only zb-h1 experts ...] [--device FILE.yaml] [--rounds 1] [--turns 6]

Each round measures the rates of a calibration (`plan --calibrate`), unless a device file is given, then trains the
small models of a calibration and the layouts in turns, and refines the rates by the former: so a machine whose speed
changes meanwhile changes both sides alike, which one calibration before all layouts does not. One line of JSON a layout
and round, of the typical steps of all its turns: `time` and `memory` are measured over predicted of the rank where that
is farthest from 1, `bubble_points` the largest distance of the bubbles, in hundredths of the step; `ranks` has each
rank's figures, and the parts of its steps. The last lines have the medians of the rounds. Times say something on a
quiet machine alone; memory, the arrays that were allocated, on any.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of
from benchmarks.planned_run import ROOT, Found, run_of, seconds_of, trained
from parallel_core.planner import Device, find_device
from parallel_core.planner.recorded import joined

PP2 = "--pipeline-model-parallel-size 2"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
EXPERTS = "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"
LAYOUTS = {
    "one rank": (1, ""),
    "recompute": (1, FULL),
    "tensor": (2, "--tensor-model-parallel-size 2"),
    "sequence": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "1f1b": (2, PP2),
    "interleaved": (2, f"{PP2} --num-virtual-stages-per-pipeline-rank 2"),
    "zb-h1": (2, f"{PP2} --pipeline-schedule zb-h1"),
    "gpipe": (2, f"{PP2} --pipeline-schedule gpipe"),
    "data": (2, ""),
    "context": (2, "--context-parallel-size 2"),
    "experts": (2, f"{EXPERTS} --moe-router-force-load-balancing"),
    "zero 3": (2, "--zero-stage 3"),
}
"""Name -> ranks, and flags."""
KEYS = {"time": "seconds", "memory": "memory"}
"""Ratio -> the quantity that it is of."""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__, hidden=512, layers=4, heads=8, seq=256, mbs=1, vocab=4096, micro_batches=4, steps=8)
    parser.add_argument("--only", nargs="+", choices=tuple(LAYOUTS), default=list(LAYOUTS), help="layouts")
    parser.add_argument("--rounds", type=int, default=1, help="how often all layouts are measured in turns")
    parser.add_argument("--turns", type=int, default=6, help="how often they train in a round, --steps steps each time")
    parser.add_argument("--device", help="a device file, instead of a calibration")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error(f"--turns {options.turns}: must be at least 1")
    options.device = options.device and str(Path(options.device).absolute())
    os.chdir(ROOT)  # a calibration starts processes that import the sources
    return options


def flags_of(options: argparse.Namespace, layout: str, device: str) -> list[str]:
    """The model and one of LAYOUTS as Megatron's flags; device: the file that describes this machine."""
    ranks, more = LAYOUTS[layout]
    replicas = ranks if layout in ("data", "experts", "zero 3") else 1
    batch = options.mbs * options.micro_batches * replicas
    named = model_flags(
        options, global_batch_size=batch, train_iters=options.steps, log_interval=1000, eval_iters=0, threads=1,
        device_target="CPU", plan_device=device,
    )  # fmt: skip
    return [*named, "--swiglu", "--normalization", "RMSNorm", *more.split()]


def compared(found: list[Found]) -> dict[str, float]:
    """`time` and `memory`: measured over predicted, of the rank where that is farthest from 1; `bubble_points`: the
    largest distance of the bubbles in hundredths of the step. found: of each rank."""
    ratios = {name: [one[key][1] / one[key][0] for one in found] for name, key in KEYS.items()}
    worst = {name: round(max(values, key=lambda ratio: abs(ratio - 1)), 4) for name, values in ratios.items()}
    points = max(100 * abs(one["bubble"][1] - one["bubble"][0]) for one in found)
    return {**worst, "bubble_points": round(points, 1)}


def of_round(options: argparse.Namespace, folder: str) -> dict[str, list[Found]]:
    """Layout -> each rank's figures of one round; its files are left in `folder`."""
    from pynative.calibrate.__main__ import device_of, fitted, measured, train_models, write  # imports MindSpore

    path = options.device or f"{folder}/rates.yaml"
    if not options.device:
        write(device_of(measured()), path)
    memory: dict[str, list[Found]] = {}
    numbers = sorted({LAYOUTS[layout][0] for layout in options.only})
    by_ranks = [(ranks, [one for one in options.only if LAYOUTS[one][0] == ranks]) for ranks in numbers]
    turns = [f"{folder}/{turn}" for turn in range(options.turns)]
    for turn in turns:
        if not options.device:
            train_models(f"{turn}/models", 1)
        for ranks, layouts in by_ranks:
            place = Path(turn, str(ranks))
            place.mkdir(parents=True)
            found = trained(ranks, [flags_of(options, layout, path) for layout in layouts], str(place))
            memory |= zip(layouts, found, strict=True)
    device = find_device(path) if options.device else fitted(find_device(path), [f"{turn}/models" for turn in turns])
    seconds = {
        layout: of_turns([f"{turn}/{ranks}" for turn in turns], number, device)
        for ranks, layouts in by_ranks
        for number, layout in enumerate(layouts)
    }
    return {
        layout: [times | own for times, own in zip(seconds[layout], memory[layout], strict=True)]
        for layout in options.only
    }


def of_turns(folders: list[str], number: int, device: Device) -> list[Found]:
    """Each rank's times in the runs with this number in all folders together."""
    return seconds_of(joined([run_of(folder, number) for folder in folders]), device)


def main() -> None:
    """Measure all layouts, and print a line for each; as often as there are rounds, and then the medians."""
    options, rounds = parse(), defaultdict(list)
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for layout, found in of_round(options, folder).items():
                rounds[layout].append(compared(found))
                print(json.dumps({"layout": layout, **rounds[layout][-1], "ranks": found}), flush=True)
    for layout, lines in rounds.items():
        print(json.dumps({"median of": layout} | {key: median(line[key] for line in lines) for key in lines[0]}))


if __name__ == "__main__":
    main()
