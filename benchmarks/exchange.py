"""The part of the experts' exchange that a step waits for, with and without --overlap-moe-expert-parallel-comm.

    python benchmarks/exchange.py --pp 2 --ep 2 [--share 0.25] [-- --schedules-method dualpipev ...]

On a network that does not exist: a message of the experts arrives so many seconds after it was sent, during which the
processor is free, and whoever comes for it before sleeps. The seconds are such that the messages of a step together
last a share of it. `exposed_ms` is the time for which one comes early in a step, mean over the ranks: the part that the
order of work cannot hide, however ranks share the cores; `exposed` is its ratio with the flag to that without, `step`
that of the steps. `inside_ms` is the time inside of exchanges without that network, as a trace has it: mostly waiting
for ranks that have not come, of which there is more where they share cores.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of, split_at_dashes

OVERLAP = "--overlap-moe-expert-parallel-comm"
EXPERTS = (
    "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 256 --moe-token-dispatcher-type alltoall "
    "--moe-grouped-gemm --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights"
)


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(
        __doc__, hidden=128, layers=4, heads=4, seq=128, mbs=2, vocab=512, pp=2, ep=2, micro_batches=12, steps=4,
    )  # fmt: skip
    parser.add_argument("--share", type=float, default=0.25, help="of a step that the experts' messages last")
    parser.add_argument("--delay", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    own, more = split_at_dashes()
    return parser.parse_args(own, argparse.Namespace(megatron=more))


def megatron_flags(options: argparse.Namespace) -> list[str]:
    """The benchmark's model and layout as Megatron's flags."""
    named = model_flags(
        options,
        global_batch_size=options.mbs * options.micro_batches * options.ep,
        train_iters=options.steps + 1,
        log_interval=1000,
        eval_iters=0,
        expert_model_parallel_size=options.ep,
        pipeline_model_parallel_size=options.pp,
        threads=1,
    )
    return [*named, *EXPERTS.split(), *options.megatron]


class Network:
    """The imagined network: messages arrive `seconds` after they were sent; `slept` is the time for which ranks came
    early."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.slept, self.messages = seconds, 0.0, 0

    def carries(self, start):
        """A function that starts a message as `start` does, and whose handle is complete only after the network's
        time."""
        from pynative.collectives import Handle

        network = self

        class Late(Handle):
            def __init__(self, inner: Handle) -> None:
                self._inner, self._arrival = inner, time.perf_counter() + network.seconds

            def wait(self):
                left = self._arrival - time.perf_counter()
                if left > 0:
                    time.sleep(left)
                    network.slept += left
                return self._inner.wait()

            def done(self) -> bool:
                return time.perf_counter() >= self._arrival and self._inner.done()

        def started(route, x):
            self.messages += 1
            return Late(start(route, x))

        return started


def work(options: argparse.Namespace) -> None:
    """Train as one of the launched processes; rank 0 writes the figures, means over the ranks of the steps' medians."""
    from mapping import init_configs_from_args, initialize_megatron
    from pynative import parallel_state
    from pynative.calibrate.training import RandomTokens
    from pynative.collectives.numbers import sum_over_group
    from pynative.moe.token_dispatcher import AllToAllRoute
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.training.utils import set_parallel_context, set_seed
    from pynative.transformer.gpt_model import GPTModel

    network, steps = Network(options.delay), list[list[float]]()
    for name in ("start", "start_back"):
        setattr(AllToAllRoute, name, network.carries(getattr(AllToAllRoute, name)))

    class Clock(Callback):
        def on_step_end(self, state) -> None:
            counts = world.trace.counts.items()
            inside = sum(count.seconds for (_, operation), count in counts if operation == "all_to_all")
            steps.append([state.step_seconds, network.slept, network.messages, inside])
            network.slept, network.messages = 0.0, 0
            world.trace.reset()

    config = init_configs_from_args(initialize_megatron(argv=megatron_flags(options)))
    set_parallel_context(config.parallel_config)
    set_seed(0)
    world, rows = parallel_state.get_world_group(), RandomTokens(options.vocab, options.seq, 64)
    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(config.model_config, **where),
        all_config=config,
        callbacks=[Clock()],
    )
    own = [statistics.median(column) for column in zip(*steps[1:], strict=True)]
    figures = [total / world.size for total in sum_over_group(own, world)]
    if world.rank == 0:
        (options.out / "figures.json").write_text(json.dumps(figures))


def measured(options: argparse.Namespace, delay: float, *flags: str) -> list[float]:
    """[seconds of a step, seconds slept, messages, seconds inside of exchanges], mean over the ranks, of a run in which
    messages take `delay` seconds."""
    from pynative.startup.launch import msrun_command, quiet_environment

    own, more = split_at_dashes()
    with tempfile.TemporaryDirectory() as out:
        arguments = ["--out", out, "--delay", str(delay), *own, "--", *more, *flags]
        command = msrun_command(__file__, arguments, options.pp * options.ep, Path(out) / "log")
        done = subprocess.run(command, capture_output=True, text=True, env=quiet_environment(), cwd=out)
        if done.returncode:
            logs = [path.read_text()[-2000:] for path in sorted((Path(out) / "log").glob("worker_*"))]
            raise SystemExit("\n".join([done.stderr[-2000:], *logs]))
        return json.loads((Path(out) / "figures.json").read_text())


def main() -> None:
    """Train without the network's delay, then with it, in both orders of work, and print the figures; with --out be one
    of the ranks."""
    options = parse()
    if options.out:
        work(options)
        return
    orders = {"plain": (), "overlapped": (OVERLAP,)}
    without = {name: measured(options, 0.0, *flags) for name, flags in orders.items()}
    seconds, _, messages, _ = without["plain"]
    delay = options.share * seconds / messages
    found = {name: measured(options, delay, *flags) for name, flags in orders.items()}
    figures = {
        "delay_ms": round(delay * 1e3, 3),
        "messages": round(messages),
        "exposed_ms": {name: round(one[1] * 1e3, 1) for name, one in found.items()},
        "exposed": round(found["overlapped"][1] / found["plain"][1], 3),
        "step_ms": {name: round(one[0] * 1e3, 1) for name, one in found.items()},
        "step": round(found["overlapped"][0] / found["plain"][0], 3),
        "inside_ms": {name: round(one[3] * 1e3, 1) for name, one in without.items()},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
