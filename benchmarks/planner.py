"""The planner beside this machine: a step's time, bubble and memory of 12 layouts on two ranks, predicted and measured.

    python benchmarks/planner.py [--only zb-h1 experts ...] [--device FILE.yaml]

Calibrates first (`plan --calibrate`) unless a device file is given, then trains each layout in processes of its own.
One line of JSON a layout: `time` and `memory` are measured over predicted of the rank where that is farthest from 1,
`bubble_points` the largest distance of the bubbles, in hundredths of the step. Times say something on a quiet machine
alone; memory, the arrays that were allocated, on any.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of

ROOT = Path(__file__).resolve().parents[1]
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
"""Name -> ranks, and flags."""
RESULT = "RESULT "


def parse() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__, hidden=512, layers=4, heads=8, seq=512, mbs=2, vocab=4096, micro_batches=4, steps=6)
    parser.add_argument("--only", nargs="+", choices=tuple(LAYOUTS), default=list(LAYOUTS), help="layouts")
    parser.add_argument("--device", help="a device file, instead of a calibration")
    parser.add_argument("--rank-of", choices=tuple(LAYOUTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def flags_of(options: argparse.Namespace, layout: str) -> list[str]:
    """The layout's model as Megatron's flags."""
    ranks, more = LAYOUTS[layout]
    replicas = ranks if layout in ("data", "experts", "zero 3") else 1
    batch = options.mbs * options.micro_batches * replicas
    named = model_flags(
        options, global_batch_size=batch, train_iters=options.steps, log_interval=1000, eval_iters=0, threads=1,
        device_target="CPU", plan_device=options.device,
    )  # fmt: skip
    return [*named, "--swiglu", "--normalization", "RMSNorm", *more.split()]


def train(options: argparse.Namespace) -> None:
    """As one of the ranks: train, and print what was predicted and measured."""
    from benchmarks.throughput import RandomTokens
    from mapping import init_configs_from_args, initialize_megatron
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = init_configs_from_args(initialize_megatron(argv=flags_of(options, options.rank_of)))
    rows = RandomTokens(options.vocab, options.seq, options.steps * config.batch_sizes.final)
    seconds: list[float] = []

    class Meter(Callback):
        def on_step_end(self, state) -> None:
            seconds.append(state.step_seconds)
            if state.iteration == options.steps:
                compared = state.comparison
                bubble = {row.part: (row.predicted, row.measured) for row in compared.seconds.rows}.get(
                    "bubble", (0, 0)
                )
                found = {
                    "seconds": [state.plan.step.total, min(seconds[1:])],
                    "bubble": [bubble[0] / compared.seconds.predicted, bubble[1] / compared.seconds.measured],
                    "memory": [compared.memory.predicted, compared.memory.measured],
                    "activations": [compared.memory.rows[-1].predicted, compared.memory.rows[-1].measured],
                }
                print(RESULT + json.dumps(found), flush=True)

    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(config.model_config, **where),
        all_config=config,
        callbacks=[Meter()],
    )


def measured(options: argparse.Namespace, layout: str, device: str) -> list[dict[str, list[float]]]:
    """What each rank of a layout finds. Raises RuntimeError if one fails."""
    ranks = LAYOUTS[layout][0]
    common = os.environ | {"RANK_SIZE": str(ranks), "MS_SCHED_PORT": f"planner-{os.getpid()}", "GLOG_v": "3"}
    sizes = ("hidden", "layers", "heads", "seq", "mbs", "vocab", "micro_batches", "steps")
    words = [word for name in sizes for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    command = [sys.executable, __file__, *words, "--device", device, "--rank-of", layout]
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                command, cwd=folder, text=True, stdout=subprocess.PIPE,
                env=common | {"RANK_ID": str(rank), "PYTHONPATH": str(ROOT)},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in started]
    lines = [line for text in said for line in text.splitlines() if line.startswith(RESULT)]
    if len(lines) < ranks:
        raise RuntimeError(f"{layout}: {said}")
    return [json.loads(line.removeprefix(RESULT)) for line in lines]


def main() -> None:
    """Calibrate, measure all layouts, and print a line for each."""
    options = parse()
    if options.rank_of:
        train(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        device = options.device and str(Path(options.device).absolute())
        if not device:
            device = f"{folder}/cpu.yaml"
            command = [sys.executable, "-m", "mapping", "plan", "--calibrate", device]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        for layout in options.only:
            found = measured(options, layout, device)
            ratios = {name: [one[name][1] / one[name][0] for one in found] for name in ("seconds", "memory")}
            worst = {name: round(max(values, key=lambda ratio: abs(ratio - 1)), 4) for name, values in ratios.items()}
            points = max(100 * abs(one["bubble"][1] - one["bubble"][0]) for one in found)
            line = {"layout": layout, "time": worst["seconds"], "memory": worst["memory"]}
            print(json.dumps({**line, "bubble_points": round(points, 1), "ranks": found}), flush=True)


if __name__ == "__main__":
    main()
