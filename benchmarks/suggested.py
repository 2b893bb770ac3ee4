"""The layout that `plan --suggest` puts first beside all others, trained on four ranks.

    python benchmarks/suggested.py [--only dense experts ...] [--device FILE.yaml]

Calibrates first (`plan --calibrate`) unless a device file is given. For each of five models it asks for the fastest
layout of four devices, then trains that one and every layout that differs in more than recompute and sharding (these
spend time to save memory, which is not scarce here) in four processes. The fastest of so many short runs was lucky,
too: the suggested layout and the four fastest are trained again, in turns, and the medians of these turns count. One
line of JSON a model: `behind` says by how much the suggested layout's step is longer than that of the fastest one.
Says something on a quiet machine alone.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of
from benchmarks.planned_run import calibrated, measured
from mapping.plan import plan_of
from mapping.suggest import suggest
from parallel_core.findings import ConfigError
from parallel_core.planner.layouts import Layout, all_layouts, without_layout

RANKS, RIVALS, TURNS = 4, 4, 3
"""RIVALS: number of the fastest layouts that are measured again beside the suggested one, TURNS times."""
CASES = {
    "dense": (dict(hidden=256, layers=4, heads=8, seq=256, vocab=2048), ""),
    "deep": (dict(hidden=128, layers=8, heads=8, seq=128, vocab=1024), ""),
    "vocabulary": (dict(hidden=256, layers=4, heads=8, seq=128, vocab=16384), "--untie-embeddings-and-output-weights"),
    "long": (dict(hidden=128, layers=4, heads=4, seq=1024, vocab=1024), ""),
    "experts": (dict(hidden=128, layers=4, heads=4, seq=256, vocab=1024), "--num-experts 4 --moe-router-topk 2"),
}
"""Name of a model -> (its sizes, further flags)."""


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, batch=16, steps=5)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=list(CASES), help="models")
    parser.add_argument("--device", help="a device file, instead of a calibration")
    return parser.parse_args()


def flags_of(options: argparse.Namespace, case: str, device: str) -> list[str]:
    """The case's model as Megatron's flags, without any parallelism."""
    sizes, more = CASES[case]
    named = model_flags(
        argparse.Namespace(mbs=1, **sizes), global_batch_size=options.batch, train_iters=options.steps,
        log_interval=1000, eval_iters=0, threads=1, device_target="CPU", plan_device=device,
    )  # fmt: skip
    return [*named, "--swiglu", "--normalization", "RMSNorm", *more.split()]


def layouts_of(flags: list[str], device: str) -> tuple[Layout, list[Layout]]:
    """(the layout that is suggested first, all that are legal without recomputation and with the lowest stage of
    ZeRO)."""
    plan = plan_of(flags, RANKS, device)
    plain: dict[Layout, Layout] = {}
    for layout in all_layouts(plan.config, RANKS):
        if layout.recompute == "none" and layout.bare not in plain and _is_legal(layout, flags, device):
            plain[layout.bare] = layout
    return suggest(flags, plan).layouts[0].layout, list(plain.values())


def _is_legal(layout: Layout, flags: list[str], device: str) -> bool:
    try:
        plan_of([*without_layout(flags), *layout.flags()], RANKS, device)
    except ConfigError:
        return False
    return True


def step_seconds(flags: list[str], layouts: Sequence[Layout]) -> list[float]:
    """The measured seconds of a step in each layout, of the rank whose steps took longest."""
    runs = measured(RANKS, [[*without_layout(flags), *layout.flags()] for layout in layouts])
    return [max(one["seconds"][1] for one in found) for found in runs]


def by_flags(seconds: Mapping[Layout, float]) -> dict[str, float]:
    """Flags of each layout -> its seconds, the fastest first."""
    return {" ".join(layout.flags()): seconds[layout] for layout in sorted(seconds, key=seconds.__getitem__)}


def result_of(flags: list[str], device: str) -> dict[str, Any]:
    """The line of a model: trains all layouts, then the suggested one and its rivals in turns."""
    suggested, everything = layouts_of(flags, device)
    layouts = [*dict.fromkeys([suggested, *everything])]
    once = dict(zip(layouts, step_seconds(flags, layouts), strict=True))
    rivals = [suggested, *sorted(once.keys() - {suggested}, key=once.__getitem__)[:RIVALS]]
    again = step_seconds(flags, rivals * TURNS)
    medians = {layout: median(again[place :: len(rivals)]) for place, layout in enumerate(rivals)}
    best = min(rivals, key=medians.__getitem__)
    return {
        "layouts": len(layouts),
        "behind": round(medians[suggested] / medians[best] - 1, 4),
        "suggested": " ".join(suggested.flags()),
        "best": " ".join(best.flags()),
        "in turns": by_flags(medians),
        "once": by_flags(once),
    }


def main() -> None:
    """Calibrate, then print the line of each model."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        device = str(Path(options.device).absolute()) if options.device else calibrated(folder)
        for case in options.only:
            print(json.dumps({"case": case} | result_of(flags_of(options, case, device), device)), flush=True)


if __name__ == "__main__":
    main()
