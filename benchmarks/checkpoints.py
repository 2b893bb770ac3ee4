"""Saving and loading a run's checkpoint against `dd` of the same bytes, and the step time while one is being saved.

    python benchmarks/checkpoints.py --hidden 512 --layers 8 --vocab 16384 --folder /somewhere/on/the/disk

One process trains a GPT and prints one line of JSON. `save` is (time of `dd conv=fsync`) / (time of saving), `load`
(time of the same `dd`) / (time of loading), `load_of_read` (time of `dd` reading, from the page cache) / (time of
loading): medians over rounds, in each of which they take turns.

Then --async-save saves every 32 steps. A step counts to a save from the one in which that begins, with all that this
takes, to the one after which it is published. `async_step` is the mean time of these steps over the median of those
before and after them, the median of the rounds; `async_worst` is that of the worst round, `async_first` of the first.
`async_longest` is the longest such step over the median of the others, `async_steps` how many there are in a save.
"""

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of

INTERVAL = 32
"""Steps from one save in the background to the next."""


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, hidden=512, layers=8, heads=8, seq=128, mbs=1, vocab=16384, threads=1, rounds=5)
    parser.add_argument("--folder", type=Path, help="on the file system to measure; default: the temporary folder's")
    return parser.parse_args()


def megatron_flags(options: argparse.Namespace) -> list[str]:
    """The benchmark's model as Megatron's flags."""
    return model_flags(options, train_iters=100000, log_interval=100000, eval_iters=0, threads=options.threads)


def seconds(action: Callable[[], object]) -> float:
    """Seconds of an action on the clock, since disks are waited for."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def dd(*arguments: str) -> Callable[[], object]:
    """A call of the command `dd` with these arguments."""
    return lambda: subprocess.run(["dd", "bs=16M", *arguments], check=True, capture_output=True)


def against_dd(state: object, folder: Path, rounds: int) -> dict[str, float]:
    """The ratios `save`, `load` and `load_of_read`, medians over rounds, with seconds of each part and the size."""
    from pynative.checkpointing import load_checkpoint, save_checkpoint

    times: list[dict[str, float]] = []
    for number in range(rounds + 1):
        saved = seconds(lambda: save_checkpoint(folder, state, keep=1))
        (file,) = folder.glob("iter_*/*.safetensors")
        write = dd(f"if={file}", f"of={folder / 'copy'}", "conv=fsync")
        one = {"save": saved, "write": seconds(write), "read": seconds(dd(f"if={file}", "of=/dev/null"))}
        one["load"] = seconds(lambda: load_checkpoint(folder, state))
        (folder / "copy").unlink()
        if number:
            times.append(one)
    pairs = {"save": ("write", "save"), "load": ("write", "load"), "load_of_read": ("read", "load")}
    ratios = {name: statistics.median(one[a] / one[b] for one in times) for name, (a, b) in pairs.items()}
    return {**ratios, "gigabytes": file.stat().st_size / 1e9, **{f"{k}_s": min(t[k] for t in times) for k in times[0]}}


class Turns:
    """Times of steps, those without and those with a save under way, in rounds that begin with a save."""

    def __init__(self, left: int) -> None:
        self.steps_left = (left + 1) * INTERVAL
        self.was_saving = False
        self.rounds: list[tuple[list[float], list[float]]] = []
        self.before = time.perf_counter()

    def step_ended(self, is_saving: bool) -> bool:
        """Note the time of the step that ends; whether it was the last one to measure."""
        now = time.perf_counter()
        if not self.rounds or (is_saving and not self.was_saving):
            self.rounds.append(([], []))
        self.rounds[-1][is_saving].append(now - self.before)
        self.before, self.was_saving = time.perf_counter(), is_saving
        self.steps_left -= 1
        return self.steps_left <= 0

    def figures(self) -> dict[str, float]:
        """The ratios of steps with a save under way to those without (`async_*`), the number of such steps, and seconds
        of a step."""
        all_plain = [seconds for one, _ in self.rounds for seconds in one]
        plain = [statistics.median(one[-12:] or all_plain) for one, _ in self.rounds]
        busy = [one for _, one in self.rounds[1:]]
        around = [(before + after) / 2 for before, after in itertools.pairwise(plain)]
        means = [statistics.mean(one) / usual for one, usual in zip(busy, around, strict=True)]
        return {
            "async_step": statistics.median(means),
            "async_worst": max(means),
            "async_first": means[0],
            "async_longest": max(map(max, busy)) / statistics.median(plain),
            "async_steps": statistics.median(map(len, busy)),
            "step_s": statistics.median(plain),
        }


def main() -> None:
    """Run the benchmark in this process and print its line of JSON."""
    options = parse()
    from benchmarks.throughput import RandomTokens
    from mapping import init_configs_from_args, initialize_megatron
    from pynative.training.callbacks import Callback, CheckpointCallback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = init_configs_from_args(initialize_megatron(argv=megatron_flags(options)))
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    turns, found = Turns(options.rounds), {}
    saves = CheckpointCallback(folder / "background", INTERVAL, background=True)

    class Measure(Callback):
        """A callback that measures against `dd` after the second step, then steps with saves in the background."""

        def on_step_end(self, state) -> None:
            if state.iteration == 2:
                found.update(against_dd(state, folder / "waiting", options.rounds))
                turns.before = time.perf_counter()
            elif state.iteration > 2:
                state.should_stop = turns.step_ended(saves.is_saving)

    try:
        pretrain(
            lambda samples: (RandomTokens(options.vocab, options.seq, 1000), None, None),
            lambda **where: GPTModel(config.model_config, **where),
            all_config=config,
            callbacks=[Measure(), saves],
        )
    finally:
        shutil.rmtree(folder)
    figures = {name: round(value, 3) for name, value in (found | turns.figures()).items()}
    print(json.dumps({**{k: v for k, v in vars(options).items() if k != "folder"}, **figures}))


if __name__ == "__main__":
    main()
