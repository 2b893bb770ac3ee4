"""The bubble that a trace shows beside the simulator's, by the wall clock: eight pipelines of two ranks.

    python benchmarks/bubbles.py [--only zb-h1 ...] [--steps 30]

The pipelines train with `--trace`, one after the other. The trace has the schedule beside it that the simulator
makes of the mean times of its computations, without messages; a line of JSON has the mean shares of the pipeline's time
in which a rank waits, measured and simulated, and their distance in hundredths. Meaningful on a quiet machine: where
others disturb one stage, the other waits.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of
from benchmarks.planned_run import trained

CHUNKS = "--num-virtual-stages-per-pipeline-rank 2"
PIPELINES = {
    "1f1b": "",
    "gpipe": "--pipeline-schedule gpipe",
    "zb-h1": "--pipeline-schedule zb-h1",
    "interleaved": CHUNKS,
    "zb-1p": "--pipeline-schedule zb-1p",
    "zb-v": f"{CHUNKS} --pipeline-schedule zb-v",
    "v-half": f"{CHUNKS} --pipeline-schedule v-half",
    "recompute": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
}
"""Name -> flags beside two stages."""


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, hidden=512, layers=4, heads=8, seq=256, mbs=1, vocab=1024, micro_batches=4, steps=20)
    parser.add_argument("--only", nargs="+", choices=tuple(PIPELINES), default=list(PIPELINES), help="pipelines")
    return parser.parse_args()


def flags_of(options: argparse.Namespace, pipeline: str) -> list[str]:
    """The pipeline's model as Megatron's flags."""
    named = model_flags(
        options, global_batch_size=options.mbs * options.micro_batches, train_iters=options.steps, log_interval=1000,
        eval_iters=0, threads=1, device_target="CPU", pipeline_model_parallel_size=2,
    )  # fmt: skip
    return [*named, "--untie-embeddings-and-output-weights", *PIPELINES[pipeline].split()]


def shares(path: Path) -> tuple[float, float]:
    """Mean shares of the bubble in a trace: measured, of all ranks and steps, and simulated."""
    from parallel_core.trace import read_chrome, summary

    measured = mean(one.bubble_share for one in summary(read_chrome(path)))
    return measured, json.loads(path.read_text())["planned"]["bubble_share"]


def main() -> None:
    """Train all pipelines, and print a line for each."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        trained(2, [flags_of(options, pipeline) for pipeline in options.only], folder)
        for number, pipeline in enumerate(options.only):
            measured, simulated = shares(Path(folder, str(number), "output/trace.json"))
            points = round(100 * (measured - simulated), 1)
            line = {"measured": round(measured, 4), "simulated": round(simulated, 4), "points": points}
            print(json.dumps({"pipeline": pipeline, **line}), flush=True)


if __name__ == "__main__":
    main()
