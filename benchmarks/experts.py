"""Training throughput of a mixture of experts: grouped products beside one expert after the other, and a dense model.

    python benchmarks/experts.py [--rounds 2] [--rows fp32-ep1 bf16-ep2 ...]

The model is of Mixtral's shape (README, "How fast is it on a CPU?"). A row's three contenders run in turns, each a
process of `benchmarks/throughput.py`; the best of all rounds counts. Prints a line of JSON a row: tokens a second of
all ranks, the ratio of grouped to the others, and rank 0's peak memory. The dense model's feed-forward block is as wide
as a token's experts together, so that both multiply alike: what is missing to a ratio of 1 is what routing and dispatch
cost.

For a ratio to Megatron-Core train there, in turns with this on the same cores, what SIZES, MODEL and CONTENDERS say.
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel_core.system.command_line import command_line

ROOT = Path(__file__).resolve().parents[1]

SIZES = "--hidden 256 --layers 4 --heads 8 --seq 512 --mbs 4 --vocab 8192 --threads 1"
MODEL = "--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope"
EXPERTS = (
    "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 256 --moe-token-dispatcher-type alltoall "
    "--moe-aux-loss-coeff 0.01"
)
CONTENDERS = {
    "grouped": f"{EXPERTS} --moe-grouped-gemm",
    "sequential": EXPERTS,
    "dense": "--ffn-hidden-size 512",
}
ROWS = {f"{precision}-ep{ranks}": (precision, ranks) for precision in ("fp32", "bf16") for ranks in (1, 2)}


def measured(precision: str, ranks: int, flags: str) -> dict[str, float]:
    """The figures that throughput.py prints for one run on `ranks` data- and expert-parallel ranks."""
    options = f"{SIZES} --precision {precision} --dp {ranks}"
    split = f"--expert-model-parallel-size {ranks}" if "--num-experts" in flags else ""
    command = [sys.executable, str(ROOT / "benchmarks" / "throughput.py"), *options.split(), "--"]
    done = subprocess.run([*command, *MODEL.split(), *flags.split(), *split.split()], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, rounds: int) -> dict[str, object]:
    """One row of the report: each contender's best tokens a second of all rounds, ratios of grouped to the others, and
    grouped's least peak memory."""
    runs = [{who: measured(*ROWS[name], flags) for who, flags in CONTENDERS.items()} for _ in range(rounds)]
    best = {who: max(run[who]["tokens_per_s"] for run in runs) for who in CONTENDERS}
    ratios = {f"grouped/{who}": round(best["grouped"] / best[who], 2) for who in ("sequential", "dense")}
    return {"row": name, **best, **ratios, "peak_rss_mb": min(run["grouped"]["peak_rss_mb"] for run in runs)}


def main() -> None:
    """Measure the rows that the command line asks for and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="runs of which the best counts")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="precision and ranks")
    options = parser.parse_args()
    for name in options.rows:
        print(json.dumps(row(name, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
