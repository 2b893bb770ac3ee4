"""The table of README, "How fast is it on a CPU?": ours over Megatron-Core's, in turns on the same cores.

    python -m venv M && M/bin/pip install -r benchmarks/megatron/requirements.txt
    python -m benchmarks.megatron --megatron M/bin/python [--rounds 2] [--columns "1 thread" "tp 2"] [--sizes "..."]

A round runs Megatron's half (`train.py`) and ours (`benchmarks/throughput.py`) one after the other; the best of all
rounds counts. Speed is tokens a second of all ranks, memory the peak of rank 0. Figures of different machines are not
comparable; the ratios of one run are.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from parallel_core.system.command_line import command_line

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = {
    "1 thread": "--threads 1",
    "2 threads": "--threads 2",
    "tp 2": "--tp 2",
    "dp 2": "--dp 2",
    "pp 2, 4 micro-batches": "--pp 2 --micro-batches 4",
}
PRECISIONS = {"float32": "--precision fp32", "bfloat16": "--precision bf16"}
MEASURES = {"speed": ("tokens_per_s", max, 1), "memory": ("peak_rss_mb", min, 2)}
"""Row of the table -> (name of the figure that both programs print, function that takes the best of several, decimals
of the ratio)."""


def measured(python: str, program: str, flags: str) -> dict[str, float]:
    """The figures that a program in `benchmarks/` prints for one run by the interpreter `python`. Ends with its error
    if it fails."""
    command = [python, str(ROOT / "benchmarks" / program), *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def ratios(flags: str, megatron: str, rounds: int) -> list[str]:
    """Ours over Megatron's figure for each of MEASURES, as text in the table; flags: of a cell's run."""
    both = [
        (measured(megatron, "megatron/train.py", flags), measured(sys.executable, "throughput.py", flags))
        for _ in range(rounds)
    ]
    theirs, ours = zip(*both, strict=True)
    return [
        f"{best(run[figure] for run in ours) / best(run[figure] for run in theirs):.{decimals}f}"
        for figure, best, decimals in MEASURES.values()
    ]


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--megatron", required=True, metavar="PYTHON", help="interpreter with requirements.txt")
    parser.add_argument("--rounds", type=int, default=2, help="turns of which the best counts")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS), help="layouts")
    parser.add_argument("--sizes", default="", help="options of both programs for another model")
    return parser.parse_args()


def main() -> None:
    """Measure, and print the table in Markdown, a row as soon as it is known."""
    options = parse()
    print(f"| | {' | '.join(options.columns)} |\n|---|{'---|' * len(options.columns)}", flush=True)
    for precision, flags in PRECISIONS.items():
        columns = [
            ratios(f"{options.sizes} {flags} {COLUMNS[name]}", options.megatron, options.rounds)
            for name in options.columns
        ]
        for number, measure in enumerate(MEASURES):
            print(f"| {precision}, {measure} | {' | '.join(column[number] for column in columns)} |", flush=True)


if __name__ == "__main__":
    main()
