"""The speed of mixers that keep a state: `python benchmarks/recurrent.py [--transformers PYTHON] [--parts]`.

A mixer's forward and backward (a gated delta net as Qwen3-Next has, Mamba-2's), float32, random, in this project and,
given an interpreter of an environment that has `transformers` and `torch`, in `transformers`' code of torch operators:
in turns, each in a process of its own. Prints a line of JSON for each number of threads and each length of the
sequence, of as many tokens: milliseconds, the least of the turns; `ratio`, theirs over ours; `of_shortest`, our tokens
a second over those at the first length. `--parts` prints where ours goes instead: milliseconds of each operator with a
backward of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for transformers' interpreter, too

from benchmarks.measured_program import Program
from parallel_core.system.command_line import command_line

HEAD, TAPS = 128, 4
"""HEAD: size of a head of queries and keys, which Mamba-2 calls its state; TAPS: tokens that a convolution sees."""
MAMBA_HEAD = 64
MIXERS = ("gated_delta_net", "mamba2")
Ask = Callable[[int, int], float]
"""(tokens of a sequence, sequences) -> seconds of a forward and backward."""


def clock(threads: int) -> Callable[[], float]:
    """The clock to measure seconds with: for one thread processor time, which other work on the machine does not change
    much."""
    return time.process_time if threads == 1 else time.perf_counter


def megatron_flags(options: argparse.Namespace) -> list[str]:
    """A layer with the mixer `options.mixer` as Megatron's flags. For hidden size h a gated delta net has, as
    Qwen3-Next, h / 128 heads of keys and h / 64 of values, of 128 features each; Mamba-2 has h / 32 heads of 64."""
    hidden, flags = options.hidden, {
        "num-layers": 1, "num-attention-heads": 8, "hidden-size": options.hidden, "seq-length": 64,
        "max-position-embeddings": 64, "micro-batch-size": 1, "global-batch-size": 1, "vocab-size": 64,
        "tokenizer-type": "NullTokenizer", "train-iters": 1, "lr": 1e-4, "normalization": "RMSNorm",
        "threads": options.threads[0], "kernels": options.kernels, "position-embedding-type": "none",
    }  # fmt: skip
    if options.mixer == "mamba2":
        flags |= {
            "hybrid-override-pattern": "M", "mamba-head-dim": MAMBA_HEAD, "mamba-num-heads": 2 * hidden // MAMBA_HEAD,
            "mamba-state-dim": HEAD, "mamba-num-groups": options.groups,
        }  # fmt: skip
    else:
        flags |= {
            "experimental-attention-variant": "gated_delta_net", "linear-attention-freq": 1,
            "linear-key-head-dim": HEAD, "linear-value-head-dim": HEAD, "linear-num-key-heads": hidden // HEAD,
            "linear-num-value-heads": 2 * hidden // HEAD, "linear-conv-kernel-dim": TAPS,
        }  # fmt: skip
    return ["--disable-bias-linear", *(text for name, value in flags.items() for text in (f"--{name}", str(value)))]


def normal(*shape: int) -> np.ndarray:
    """Random normal numbers, float32."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def ours(options: argparse.Namespace) -> Ask:
    """A function that measures a forward and backward of the mixer in this project."""
    from mindspore import Tensor

    from mapping import init_configs_from_args, initialize_megatron
    from parallel_core import blocks
    from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
    from pynative.parameter import initialize_parameters, trainable
    from pynative.tape import autograd
    from pynative.training.utils import set_parallel_context
    from pynative.transformer.gated_delta_net import GatedDeltaNet
    from pynative.transformer.mamba import MambaMixer

    config = init_configs_from_args(initialize_megatron(argv=megatron_flags(options)))
    set_parallel_context(config.parallel_config)
    model, block, cell = config.model_config, blocks.GatedDeltaNet, GatedDeltaNet
    if options.mixer == "mamba2":
        block, cell = blocks.MambaMixer, MambaMixer
    mixer = cell(model, 1, block.of(model, 0))
    initialize_parameters(mixer, seed=1)
    buffers = ParamAndGradBuffers(trainable(mixer), config.training_config.gradient)

    now = clock(options.threads[0])

    def ask(sequence: int, batch: int) -> float:
        x, dy = (Tensor.from_numpy(normal(sequence, batch, options.hidden)) for _ in range(2))
        autograd.leaf(x)
        started = now()
        buffers.empty_gradients()
        with autograd.recording():
            y, _ = mixer(x)
        autograd.backward([y], [dy])
        autograd.take_gradient(x)
        return now() - started

    return ask


def theirs(options: argparse.Namespace) -> Ask:
    """A function that measures a forward and backward of the mixer in `transformers`. It looks for a package `kernels`,
    and must not find the file of that name beside this one."""
    sys.path.remove(str(Path(__file__).resolve().parent))
    import torch
    from transformers import Mamba2Config, Qwen3NextConfig
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    torch.set_num_threads(options.threads[0])
    hidden = options.hidden
    if options.mixer == "mamba2":
        sizes = {"num_heads": 2 * hidden // MAMBA_HEAD, "head_dim": MAMBA_HEAD, "state_size": HEAD}
        config = Mamba2Config(hidden_size=hidden, n_groups=options.groups, num_hidden_layers=1, vocab_size=64, **sizes)
        mixer = Mamba2Mixer(config, 0)
    else:
        heads = {"linear_num_key_heads": hidden // HEAD, "linear_num_value_heads": 2 * hidden // HEAD}
        mixer = Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=hidden, num_hidden_layers=4, **heads), 0)
    mixer.train()

    now = clock(options.threads[0])

    def ask(sequence: int, batch: int) -> float:
        x, dy = (torch.from_numpy(normal(batch, sequence, hidden)) for _ in range(2))
        x.requires_grad_()
        started = now()
        mixer.zero_grad()
        mixer(x).backward(dy)
        return now() - started

    return ask


def print_parts(options: argparse.Namespace, ask: Ask) -> None:
    """Print each tape function's milliseconds in our mixer, the least of the turns; functions within others count
    twice."""
    from pynative.tape.autograd import Function

    taken: Counter[str] = Counter()
    now = clock(options.threads[0])

    def clocked(name: str, function: Callable[..., Any]) -> Any:
        def call(*arguments: Any) -> Any:
            started = now()
            result = function(*arguments)
            taken[name] += now() - started
            return result

        return staticmethod(call)

    for kind in Function.__subclasses__():
        for name in ("forward", "backward"):
            setattr(kind, name, clocked(f"{kind.__name__.strip('_')} {name}", getattr(kind, name)))
    for sequence in options.lengths:
        least: dict[str, float] = {}
        for _ in range(options.turns):
            taken.clear()
            taken["whole"] = ask(sequence, options.tokens // sequence)
            least = {name: min(value, least.get(name, value)) for name, value in taken.items()}
        parts = sorted(least.items(), key=lambda part: -part[1])
        print(json.dumps({"s": sequence} | {name: round(1e3 * value, 1) for name, value in parts}), flush=True)


def serve(options: argparse.Namespace) -> None:
    """Answer each line "sequence batch" of standard input with the seconds of a forward and backward."""
    ask = {"ours": ours, "theirs": theirs}[options.serve](options)
    print("ready", flush=True)
    for line in sys.stdin:
        print(ask(*map(int, line.split())), flush=True)


def measure(programs: dict[str, Program], options: argparse.Namespace) -> None:
    """Measure the programs in turns and print a line for each length of the sequence."""
    best = {(name, length): float("inf") for name in programs for length in options.lengths}
    for turn in range(options.turns + 1):
        for name, length in best:
            seconds = programs[name].seconds(length, options.tokens // length)
            if turn:  # the first one warms up
                best[name, length] = min(best[name, length], seconds)
    for length in options.lengths:
        line: dict[str, Any] = {"mixer": options.mixer, "threads": options.threads[0], "s": length}
        line |= {name: round(1e3 * best[name, length], 1) for name in programs}
        if "theirs" in programs:
            line["ratio"] = round(best["theirs", length] / best["ours", length], 2)
        line["of_shortest"] = round(best["ours", options.lengths[0]] / best["ours", length], 2)
        print(json.dumps(line), flush=True)


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--transformers", metavar="PYTHON", help="an interpreter that has transformers")
    parser.add_argument("--mixer", choices=MIXERS, help="one of them (default: both)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of each program, one after the other")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048], help="of a sequence")
    parser.add_argument("--tokens", type=int, default=2048, help="of a forward")
    parser.add_argument("--hidden", type=int, default=1024, help="hidden size")
    parser.add_argument("--groups", type=int, default=1, help="of Mamba-2")
    parser.add_argument("--kernels", choices=("host", "ops"), default="host", help="our implementation")
    parser.add_argument("--turns", type=int, default=5, help="measurements of each, in turns")
    parser.add_argument("--parts", action="store_true", help="of ours, with the first number of threads")
    parser.add_argument("--serve", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure one or both programs, or with --parts our operators."""
    options = parse()
    if options.serve:
        return serve(options)
    pythons = {"ours": sys.executable} | ({"theirs": options.transformers} if options.transformers else {})
    for mixer in MIXERS if options.mixer is None else (options.mixer,):
        for threads in options.threads:
            own = argparse.Namespace(**{**vars(options), "mixer": mixer, "threads": [threads]})
            if options.parts:
                print_parts(own, ours(own))
                return None
            given = {"mixer": mixer, "threads": threads}
            given |= {key: getattr(own, key) for key in ("hidden", "groups", "kernels")}
            words = [text for key, value in given.items() for text in (f"--{key}", str(value))]
            programs = {name: Program([python, __file__, "--serve", name, *words]) for name, python in pythons.items()}
            measure(programs, own)
            for program in programs.values():
                program.process.kill()
    return None


if __name__ == "__main__":
    main()
