"""The cost of the pipeline's runner: a step of it over a straight loop of the same forwards and backwards, one process.

    python benchmarks/runner.py --hidden 128 --layers 4 --heads 4 --seq 128 --mbs 2 --micro-batches 8

Prints one line of JSON. `ratio` is the median over rounds of (time of the runner) / (time of the loop); a round runs
both, in turns first. The ranks of a real pipeline also wait for each other, which is the schedule's matter.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, hidden=128, layers=4, heads=4, seq=128, mbs=2, vocab=1024, micro_batches=8, rounds=30)
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "zb-h1"), default="1f1b", help="of the pipeline")
    return parser.parse_args()


def megatron_flags(options: argparse.Namespace) -> list[str]:
    """The benchmark's model as Megatron's flags."""
    batch_size = options.mbs * options.micro_batches
    return model_flags(
        options, global_batch_size=batch_size, train_iters=1, threads=1, pipeline_schedule=options.schedule
    )


def batch(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Random tokens and labels, and position_ids, of all micro-batches of a step, as the data loader gives them:
    [micro-batches x mbs, s]."""
    rows = options.mbs * options.micro_batches
    tokens = np.random.default_rng(0).integers(0, options.vocab, (rows, options.seq + 1)).astype(np.int32)
    positions = np.broadcast_to(np.arange(options.seq, dtype=np.int32), (rows, options.seq))
    return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "position_ids": positions}


def contenders(options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """Name -> a step's forwards and backwards: by the pipeline's runner ("runner"), and by a plain loop ("loop")."""
    from mindspore import Tensor

    from mapping import init_configs_from_args, initialize_megatron
    from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
    from pynative.parameter import trainable
    from pynative.pipeline_parallel.step import PipelineStep
    from pynative.tape import autograd
    from pynative.training.forward_step import BatchedForwardStep
    from pynative.training.training import get_model
    from pynative.training.utils import set_parallel_context
    from pynative.transformer.gpt_model import GPTModel

    config = init_configs_from_args(initialize_megatron(argv=megatron_flags(options)))
    set_parallel_context(config.parallel_config)
    model = get_model(lambda **where: GPTModel(config.model_config, **where), config)
    buffers = ParamAndGradBuffers(trainable(model), config.training_config.gradient)
    arrays, step, chunk = batch(options), PipelineStep(model, config), model[0]
    forward_step = BatchedForwardStep(lambda data: arrays)
    tape_gradients, one = autograd.TapeGradients(trainable(model)), Tensor(np.ones((), np.float32))

    def runner() -> None:
        buffers.empty_gradients()
        step.run(forward_step, iter(()), train=True)

    def loop() -> None:
        buffers.empty_gradients()
        for first in range(0, len(arrays["tokens"]), options.mbs):
            rows = {n: np.ascontiguousarray(array[first : first + options.mbs]) for n, array in arrays.items()}
            with autograd.recording():
                loss = chunk(**{name: Tensor.from_numpy(array) for name, array in rows.items()})
            autograd.backward([loss], [one])
            tape_gradients.collect()

    return {"runner": runner, "loop": loop}


def seconds(action: Callable[[], None]) -> float:
    """Processor seconds of an action, which other programs on the machine do not change."""
    started = time.process_time()
    action()
    return time.process_time() - started


def main() -> None:
    """Measure both contenders in turns and print the line of JSON."""
    options = parse()
    named = contenders(options)
    orders = [list(named), list(named)[::-1]]
    for action in named.values():
        action()
    rounds = [{name: seconds(named[name]) for name in orders[i % 2]} for i in range(options.rounds)]
    figures = {
        "ratio": round(statistics.median(times["runner"] / times["loop"] for times in rounds), 4),
        "runner_ms": round(1e3 * min(times["runner"] for times in rounds), 2),
        "loop_ms": round(1e3 * min(times["loop"] for times in rounds), 2),
    }
    print(json.dumps({**vars(options), **figures}))


if __name__ == "__main__":
    main()
