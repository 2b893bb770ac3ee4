"""The memory that recomputation saves, beside the prediction, and its cost in time.

    python benchmarks/recompute.py --layers 12 --hidden 512 --heads 8 --seq 512 --mbs 4 --vocab 8192 -- --swiglu

What follows `--` are Megatron's flags. Each setting trains in a process of its own, in turns, on one thread. Prints
one line of JSON a setting: `peak_mb`, the most that was resident; `saved_mb` and `predicted_saved_mb`, how much less
that is than with nothing recomputed, and how much less `parallel_core.costs` says; `cpu_s`, processor time of a step,
the least over steps and rounds; `of_a_forward`, what it is more than with nothing recomputed, as a multiple of an
evaluation's forward pass.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of, split_at_dashes

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
SETTINGS = {
    "nothing": "",
    "layernorm mlp": "--recompute-granularity selective --recompute-modules layernorm mlp",
    "full": FULL,
}


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, hidden=512, layers=12, heads=8, seq=512, mbs=4, vocab=8192, steps=2, rounds=2)
    parser.add_argument("--only", choices=tuple(SETTINGS), help=argparse.SUPPRESS)
    own, more = split_at_dashes()
    return parser.parse_args(own, argparse.Namespace(megatron=more))


def megatron_flags(options: argparse.Namespace, setting: str) -> list[str]:
    """The benchmark's model with one setting of recomputation as Megatron's flags."""
    steps = {"train_iters": options.steps + 1, "log_interval": 1000, "eval_iters": 0}
    named = model_flags(options, **steps, threads=1, device_target="CPU")  # the prediction needs the device, too
    return [*named, *SETTINGS[setting].split(), *options.megatron]


def train(options: argparse.Namespace) -> dict[str, float]:
    """Run one setting in this process; MiB that are predicted for activations (`predicted_mb`) and resident at most
    (`peak_mb`), processor seconds of a step (`cpu_s`, the least, without the first, which warms up) and of an
    evaluation (`forward_s`)."""
    from mapping import init_configs_from_args, initialize_megatron
    from parallel_core.costs import StagePlan, peak_kept_bytes
    from pynative.calibrate.training import RandomTokens
    from pynative.training.callbacks import Callback
    from pynative.training.callbacks.memory import peak_memory_mb
    from pynative.training.data import build_pretraining_data_loader
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = init_configs_from_args(initialize_megatron(argv=megatron_flags(options, options.only)))
    rows = RandomTokens(options.vocab, options.seq, (options.steps + 1) * options.mbs)
    found: dict[str, float] = {"predicted_mb": peak_kept_bytes(StagePlan(config, 0)) / 2**20}

    class Meter(Callback):
        def on_train_begin(self, state) -> None:
            self.seconds: list[float] = []
            self.started = time.process_time()

        def on_step_end(self, state) -> None:
            self.seconds.append(time.process_time() - self.started)
            self.started = time.process_time()

        def on_train_end(self, state) -> None:
            found["peak_mb"], found["cpu_s"] = peak_memory_mb(), min(self.seconds[1:])
            loader = iter(build_pretraining_data_loader(rows, 0, config, is_training=False))
            started = time.process_time()
            state.step_cell.evaluate(loader, 1)
            found["forward_s"] = time.process_time() - started

    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(config.model_config, **where),
        all_config=config,
        callbacks=[Meter()],
    )
    return found


def measured(setting: str) -> dict[str, float]:
    """The figures of one run of a setting in a process of its own."""
    own, more = split_at_dashes()
    command = [sys.executable, __file__, *own, "--only", setting, "--", *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run all settings in turns and print what was found."""
    options = parse()
    if options.only:
        print(json.dumps(train(options)))
        return
    runs: dict[str, list[dict[str, float]]] = {setting: [] for setting in SETTINGS}
    for _ in range(options.rounds):
        for setting, found in runs.items():
            found.append(measured(setting))
    least = {setting: {key: min(run[key] for run in found) for key in found[0]} for setting, found in runs.items()}
    plain = least["nothing"]
    for setting, run in least.items():
        figures = {
            "peak_mb": round(run["peak_mb"]),
            "saved_mb": round(plain["peak_mb"] - run["peak_mb"]),
            "predicted_saved_mb": round(plain["predicted_mb"] - run["predicted_mb"]),
            "cpu_s": round(run["cpu_s"], 2),
            "of_a_forward": round((run["cpu_s"] - plain["cpu_s"]) / plain["forward_s"], 2),
        }
        print(json.dumps({"setting": setting, **figures}))


if __name__ == "__main__":
    main()
