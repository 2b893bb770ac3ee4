"""The number of operators of a layer, forward and backward: the cost of a step in which almost nothing is computed.

    python benchmarks/operators.py --kernels ops [-- more Megatron flags]

Prints one line of JSON, figures for each layer (a model of two layers less one of one). `functions`: operators with a
backward of their own that are written to the tape; `kernels`: calls of `pynative.kernels`; `launched`: MindSpore's own
kernels, of forward and backward passes alike, as its log tells. Microseconds are processor time of the calling thread,
the least of several runs, without the log.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel_core.system.command_line import command_line

ROOT = Path(__file__).resolve().parents[1]

LOGGED = {"GLOG_v": "3", "GLOG_logtostderr": "1", "MS_SUBMODULE_LOG_v": "{PYNATIVE:0,DEVICE:0,RUNTIME_FRAMEWORK:0}"}
"""Environment variables that make MindSpore log each kernel that it launches."""

MARK = re.compile(r"=== (\d) (\w+)")
LAUNCHES = (re.compile(r"LaunchKernel\] (\w+) Launch end"), re.compile(r"RunInner\w*\] RunOp name (\w+) "))
"""Patterns of the log's lines for kernels with an interface of their own, and for those that run as a graph of one."""

PASSES = ("forward", "backward")
LAYERS = (1, 2)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = command_line(__doc__)
    for name, default in {"hidden": 64, "heads": 4, "seq": 32, "mbs": 1, "vocab": 512, "runs": 60}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=name)
    parser.add_argument("--kernels", choices=("host", "ops"), default="host", help="implementation")
    parser.add_argument("--logged", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("more", nargs="*", help="Megatron's flags")
    return parser.parse_args(argv)


def megatron_flags(options: argparse.Namespace, layers: int) -> list[str]:
    """The benchmark's model with this number of layers as Megatron's flags."""
    flags = {
        "num-layers": layers, "hidden-size": options.hidden, "num-attention-heads": options.heads,
        "seq-length": options.seq, "max-position-embeddings": options.seq, "micro-batch-size": options.mbs,
        "global-batch-size": options.mbs, "padded-vocab-size": options.vocab, "vocab-size": options.vocab,
        "tokenizer-type": "NullTokenizer", "train-iters": 1, "lr": 1e-4, "hidden-dropout": 0.0,
        "attention-dropout": 0.0, "threads": 1, "kernels": options.kernels,
    }  # fmt: skip
    return [text for name, value in flags.items() for text in (f"--{name}", str(value))] + options.more


class Passes:
    """A model with `layers` layers, and its forward and backward on one micro-batch."""

    def __init__(self, options: argparse.Namespace, layers: int) -> None:
        from mindspore import Tensor

        from mapping import init_configs_from_args, initialize_megatron
        from pynative import parallel_state
        from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
        from pynative.parameter import trainable
        from pynative.tape import autograd
        from pynative.training.training import get_model
        from pynative.training.utils import set_parallel_context
        from pynative.transformer.gpt_model import GPTModel

        config = init_configs_from_args(initialize_megatron(argv=megatron_flags(options, layers)))
        if not parallel_state.model_parallel_is_initialized():  # the second model uses the same rank
            set_parallel_context(config.parallel_config)
        self.model = get_model(lambda **where: GPTModel(config.model_config, **where), config)
        self.buffers = ParamAndGradBuffers(trainable(self.model), config.training_config.gradient)
        self.tape_gradients = autograd.TapeGradients(trainable(self.model))
        tokens = np.random.default_rng(0).integers(0, options.vocab, (options.mbs, options.seq + 1), np.int32)
        names = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
        self.batch = {name: Tensor.from_numpy(np.ascontiguousarray(values)) for name, values in names.items()}
        self.seed = Tensor(np.ones((), np.float32))
        self.autograd = autograd

    def forward(self) -> None:
        """Run the forward and keep its loss and graph."""
        self.buffers.empty_gradients()
        with self.autograd.recording():
            self.loss = self.model[0](**self.batch)

    def backward(self) -> None:
        """Run the backward of the kept loss, down to the gradients in the buffers."""
        self.autograd.backward([self.loss], [self.seed])
        self.tape_gradients.collect()

    def run(self, around: Callable[[str, Callable[[], None]], None]) -> None:
        """Hand the forward, then the backward, with its name to `around`, which calls it."""
        for name in PASSES:
            around(name, getattr(self, name))


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Count, within the block, the tape functions and kernels that are called, as `functions` and `kernels` of
    `calls`."""
    from pynative import kernels
    from pynative.kernels.contract import CONTRACT
    from pynative.tape import autograd

    def counting(name: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    apply, before = autograd.Function.apply.__func__, {name: getattr(kernels, name) for name in CONTRACT}
    autograd.Function.apply = classmethod(counting("functions", apply))
    vars(kernels).update({name: counting("kernels", kernel) for name, kernel in before.items()})
    try:
        yield
    finally:
        autograd.Function.apply = classmethod(apply)
        vars(kernels).update(before)


def calls_of_a_layer(models: dict[int, Passes]) -> dict[str, dict[str, int]]:
    """Kind ("functions", "kernels") -> pass -> number of calls of one layer."""
    found: dict[tuple[int, str], Counter[str]] = {}
    for layers, passes in models.items():

        def count(name: str, action: Callable[[], None], layers: int = layers) -> None:
            with counted(found.setdefault((layers, name), Counter())):
                action()

        passes.run(count)

    def of_a_layer(what: str) -> dict[str, int]:
        return {name: found[2, name][what] - found[1, name][what] for name in PASSES}

    return {what: of_a_layer(what) for what in ("functions", "kernels")}


def microseconds_of_a_layer(models: dict[int, Passes], runs: int) -> dict[str, int]:
    """Pass -> microseconds of the calling thread's processor time for one layer."""
    best = {(layers, name): float("inf") for layers in models for name in PASSES}
    for _ in range(runs):
        for layers, passes in models.items():

            def measure(name: str, action: Callable[[], None], layers: int = layers) -> None:
                started = thread_time()
                action()
                best[layers, name] = min(best[layers, name], thread_time() - started)

            passes.run(measure)
    return {name: round(1e6 * (best[2, name] - best[1, name])) for name in PASSES}


def launches_of_a_layer(lines: Iterable[str]) -> dict[str, dict[str, int]]:
    """Pass -> MindSpore's kernel -> launches for one layer, from the log of a process with `--logged`."""
    found = {(layers, name): Counter[str]() for layers in LAYERS for name in (*PASSES, "between")}
    here = found[1, "between"]
    for line in lines:
        if mark := MARK.match(line):
            here = found[int(mark[1]), mark[2]]
        here.update(match[1] for pattern in LAUNCHES if (match := pattern.search(line)))
    return {name: dict((found[2, name] - found[1, name]).most_common()) for name in PASSES}


def mark_the_log(models: dict[int, Passes]) -> None:
    """Run every model's passes twice, the second time with marks in the log around each, for `launches_of_a_layer`."""
    for layers, passes in models.items():

        def marked(name: str, action: Callable[[], None], layers: int = layers) -> None:
            os.write(2, f"\n=== {layers} {name}\n".encode())
            action()
            os.write(2, f"\n=== {layers} between\n".encode())

        passes.run(lambda name, action: action())
        passes.run(marked)


def counts_of_a_layer(arguments: list[str]) -> dict[str, dict]:
    """The counts `functions`, `kernels` and `launched` of each pass, from a process that writes MindSpore's log."""
    command = [sys.executable, __file__, "--logged", *arguments]
    done = subprocess.run(command, env={**os.environ, **LOGGED}, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return {**json.loads(done.stdout.splitlines()[-1]), "launched": launches_of_a_layer(done.stderr.splitlines())}


def main() -> None:
    """Count the operators, measure their time, and print the line of JSON."""
    options = parse()
    models = {layers: Passes(options, layers) for layers in LAYERS}
    if options.logged:
        mark_the_log(models)
        print(json.dumps(calls_of_a_layer(models)))
        return
    counts = counts_of_a_layer(sys.argv[1:])
    launches = {name: sum(kernels.values()) for name, kernels in counts["launched"].items()}
    times = microseconds_of_a_layer(models, options.runs)
    print(json.dumps({"kernel_set": options.kernels, "launches": launches, "microseconds": times, **counts}))


if __name__ == "__main__":
    main()
