"""The cost of watching a run, as processor time of a tiny model, whose steps are hardly more than the host's work.

    python benchmarks/watching.py --layers 2 --hidden 64 --heads 4 --seq 64 --mbs 2 --vocab 512 --steps 100 --rounds 3

Each setting trains in a process of its own, in turns, on one thread. Prints one line of JSON: `default`, of all
processor time of a run without flags the part that callbacks (the log, its figures and files) and the thread that
answers roll calls take, and `of` it by callback; then for each flag the ratio of the processor time of a step to that
without it, of the medians over steps the least over rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of

SETTINGS = {
    "none": "",
    "trace": "--trace --profile-step-start 5 --profile-step-end 1000000",
    "deterministic": "--deterministic-mode",
    "no_rerun": "--rerun-mode disabled",
    "straggler": "--log-straggler",
}
WARM_UP = 10
EVENTS = ("on_step_end", "on_gradients", "before_change")


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, hidden=64, layers=2, heads=4, seq=64, mbs=2, vocab=512, steps=100, rounds=3)
    parser.add_argument("--only", choices=tuple(SETTINGS), help=argparse.SUPPRESS)
    return parser.parse_args()


def meter(spent: "defaultdict[str, float]", seconds: list[float]):
    """A callback that adds the processor time of every other callback to `spent`, by class name, and that of each step
    to `seconds`; both after the steps that warm up. The thread that answers roll calls counts as "roll call"."""
    from pynative.training.callbacks import Callback

    def timed(name: str, method):
        def call(*arguments) -> None:
            started = time.process_time()
            method(*arguments)
            spent[name] += time.process_time() - started

        return call

    class Meter(Callback):
        reads_parameters = False

        def on_train_begin(self, state) -> None:
            for callback in state.callbacks:
                for event in EVENTS if callback is not self else ():
                    setattr(callback, event, timed(type(callback).__name__, getattr(callback, event)))
            self.started = time.process_time()

        def on_step_end(self, state) -> None:
            now = time.process_time()
            if state.iteration == WARM_UP:
                spent.clear()
            elif state.iteration > WARM_UP:
                seconds.append(now - self.started)
            self.started = now

        def on_train_end(self, state) -> None:
            for thread in threading.enumerate():
                if thread.name == "roll call" and thread.ident is not None:
                    clock = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                    spent["roll call"] = clock * sum(seconds) / max(time.process_time(), 1e-9)

    return Meter()


def train(options: argparse.Namespace, folder: str) -> dict[str, object]:
    """Train one setting in this process; the median processor time of a step, and each callback's share of all
    steps'."""
    from mapping import init_configs_from_args, initialize_megatron
    from pynative.calibrate.training import RandomTokens
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    steps = {"train_iters": options.steps + WARM_UP, "log_interval": 100, "eval_iters": 0}
    flags = [*model_flags(options, **steps, threads=1), *SETTINGS[options.only].split()]
    flags += ["--save", folder, "--save-interval", "1000000"]
    config = init_configs_from_args(initialize_megatron(argv=flags))
    rows = RandomTokens(options.vocab, options.seq, (options.steps + WARM_UP) * options.mbs)
    spent: defaultdict[str, float] = defaultdict(float)
    seconds: list[float] = []
    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(config.model_config, **where),
        all_config=config,
        callbacks=[meter(spent, seconds)],
    )
    return {"cpu_s": statistics.median(seconds), "spent": {name: s / sum(seconds) for name, s in spent.items()}}


def main() -> None:
    """Run all settings in turns, each in a process, and print the figures; with --only be the process of one."""
    options = parse()
    if options.only:
        with tempfile.TemporaryDirectory() as folder:
            print("RESULT " + json.dumps(train(options, folder)))
        return
    found: dict[str, list[dict]] = {name: [] for name in SETTINGS}
    for _ in range(options.rounds):
        for name, results in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            results.append(json.loads(line.removeprefix("RESULT ")))
    base = min(result["cpu_s"] for result in found["none"])
    least = min((result["spent"] for result in found["none"]), key=lambda spent: sum(spent.values()))
    ratios = {name: round(min(r["cpu_s"] for r in rs) / base, 4) for name, rs in found.items() if name != "none"}
    of = {name: round(share, 5) for name, share in sorted(least.items(), key=lambda item: -item[1])}
    print(json.dumps({"step_ms": round(base * 1e3, 3), "default": round(sum(least.values()), 5), "of": of, **ratios}))


if __name__ == "__main__":
    main()
