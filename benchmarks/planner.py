"""The planner beside this machine: a step's time, bubble and memory of 12 layouts on two ranks, predicted and measured.

    python benchmarks/planner.py [--only zb-h1 experts ...] [--device FILE.yaml]

Calibrates first (`plan --calibrate`) unless a device file is given, then trains each layout in processes of its own.
One line of JSON a layout: `time` and `memory` are measured over predicted of the rank where that is farthest from 1,
`bubble_points` the largest distance of the bubbles, in hundredths of the step; `ranks` has each rank's figures, and the
parts of its second step. Times say something on a quiet machine alone; memory, the arrays that were allocated, on any.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of
from benchmarks.planned_run import calibrated, measured

PP2 = "--pipeline-model-parallel-size 2"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
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
    "experts": (2, "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"),
    "zero 3": (2, "--zero-stage 3"),
}
"""Name of a layout -> (ranks, flags)."""


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, hidden=512, layers=4, heads=8, seq=512, mbs=2, vocab=4096, micro_batches=4, steps=6)
    parser.add_argument("--only", nargs="+", choices=tuple(LAYOUTS), default=list(LAYOUTS), help="layouts")
    parser.add_argument("--device", help="a device file, instead of a calibration")
    return parser.parse_args()


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


def main() -> None:
    """Calibrate, measure all layouts, and print a line for each."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        device = str(Path(options.device).absolute()) if options.device else calibrated(folder)
        for layout in options.only:
            found = measured(LAYOUTS[layout][0], flags_of(options, layout, device))
            ratios = {name: [one[name][1] / one[name][0] for one in found] for name in ("seconds", "memory")}
            worst = {name: round(max(values, key=lambda ratio: abs(ratio - 1)), 4) for name, values in ratios.items()}
            points = max(100 * abs(one["bubble"][1] - one["bubble"][0]) for one in found)
            line = {"layout": layout, "time": worst["seconds"], "memory": worst["memory"]}
            print(json.dumps({**line, "bubble_points": round(points, 1), "ranks": found}), flush=True)


if __name__ == "__main__":
    main()
