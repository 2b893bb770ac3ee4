"""Training throughput as a fraction of what the machine's matrix product reaches in the same run.

    python benchmarks/throughput.py --hidden 512 --layers 8 --heads 8 --seq 512 --mbs 4 --vocab 8192 \\
        --tp 1 --pp 1 --dp 1 --threads 1 --precision bf16 -- --swiglu --normalization RMSNorm

What follows `--` are Megatron's flags. Prints one line of JSON. `gflops` counts forward and backward of the model over
all ranks (attention as the whole square, recomputation not at all); `sgemm_peak_gflops` is the sum over ranks and
threads of a large float32 product, whatever the precision: the best of what the ranks reach after their last step, and
of what every kind of BLAS kernels that this CPU can run reaches in a process of its own, so that a library which chose
slow kernels does not become the measure of itself; `blas_cores` are what the ranks used; `comm_ms` the time rank 0
spent in collectives, a step; `peak_rss_mb` the most memory that rank 0 had, `above_interpreter_mb`
what of it came after the interpreter had imported MindSpore and joined the job.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of, split_at_dashes
from parallel_core.system.blas import cpu_flags, usable_cores

PRECISION_FLAGS: dict[str, list[str]] = {"fp32": [], "bf16": ["--bf16"], "fp16": ["--fp16"]}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(
        __doc__, hidden=512, layers=8, heads=8, seq=512, mbs=4, vocab=8192,
        tp=1, pp=1, dp=1, threads=1, steps=5, warm_up=2,
    )  # fmt: skip
    parser.add_argument("--micro-batches", type=int, help="default: 4 in a pipeline, else 1")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "zb-h1"), default="1f1b", help="of a pipeline")
    parser.add_argument("--chunks", type=int, default=1, help="above 1: interleaved instead, so many on each stage")
    parser.add_argument("--precision", choices=tuple(PRECISION_FLAGS), default="fp32", help="type of the model")
    parser.add_argument("--kernels", choices=("host", "ops"), default="host", help="implementation")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--known-peak", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--only-peak", action="store_true", help=argparse.SUPPRESS)
    own, more = split_at_dashes(argv)
    return parser.parse_args(own, argparse.Namespace(megatron=more))


def megatron_flags(options: argparse.Namespace) -> list[str]:
    """The benchmark's model as Megatron's flags."""
    micro_batches = options.micro_batches or (4 if options.pp > 1 else 1)
    schedule = {}
    if options.chunks > 1:
        schedule["virtual_pipeline_model_parallel_size"] = options.chunks
    elif options.pp > 1:
        schedule["pipeline_schedule"] = options.schedule
    named = model_flags(
        options,
        global_batch_size=options.mbs * micro_batches * options.dp,
        train_iters=options.steps + options.warm_up,
        log_interval=1000,
        eval_iters=0,
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        threads=options.threads,
        kernels=options.kernels,
        **schedule,
    )
    return [*named, *PRECISION_FLAGS[options.precision], *options.megatron]


def sgemm_gflops(threads: int, repeats: int = 6) -> float:
    """GFLOP/s of `threads` concurrent 2048 x 512 x 2048 float32 products in this process, the best of several."""
    x, w = np.ones((2048, 512), np.float32), np.ones((2048, 512), np.float32)

    def product(_: int) -> None:
        np.matmul(x, w.T, out=np.empty((2048, 2048), np.float32))

    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            started = time.perf_counter()
            list(pool.map(product, range(threads)))
            best = max(best, threads * 2 * 2048**2 * 512 / (time.perf_counter() - started) / 1e9)
    return best


def best_known_gflops(threads: int) -> float:
    """GFLOP/s of `threads` concurrent products, the best over all of OpenBLAS's kernels that this CPU can run."""
    cores = usable_cores(platform.machine(), cpu_flags())
    return max(_gflops_in_a_process(threads, core) for core in [None, *cores])


def _gflops_in_a_process(threads: int, core: str | None) -> float:
    """`sgemm_gflops` in a process in which OpenBLAS uses the kernels of `core`; None: those that it chooses itself."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    environment |= {"OPENBLAS_NUM_THREADS": "1"} | ({"OPENBLAS_CORETYPE": core} if core else {})
    command = [sys.executable, __file__, "--threads", str(threads), "--only-peak"]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


HIDDEN = ("out", "warm_up", "known_peak", "only_peak")
"""Options that the printed line does not repeat."""


def figures(seconds: float, peak: float, flops: float, tokens: int) -> dict[str, float]:
    """The printed figures of a step: tokens and GFLOP a second, `peak` and the fraction of it, milliseconds. peak:
    GFLOP/s of products; flops, tokens: of the step, all ranks together."""
    gflops = flops / seconds / 1e9
    return {
        "tokens_per_s": round(tokens / seconds, 1),
        "gflops": round(gflops, 1),
        "sgemm_peak_gflops": round(peak, 1),
        "fraction_of_peak": round(gflops / peak, 3),
        "step_ms": round(seconds * 1e3, 1),
    }


def work(options: argparse.Namespace) -> None:
    """Train as one of the launched processes; rank 0 writes the figures into figures.json in the folder of --out."""
    from benchmarks.step_clock import StepClock
    from mapping import init_configs_from_args, initialize_megatron
    from parallel_core.costs import training_flops
    from pynative import parallel_state
    from pynative.calibrate.training import RandomTokens
    from pynative.kernels.host import blas
    from pynative.training.callbacks.memory import peak_memory_mb
    from pynative.training.training import pretrain
    from pynative.training.utils import set_parallel_context, set_seed
    from pynative.transformer.gpt_model import GPTModel

    config = init_configs_from_args(initialize_megatron(argv=megatron_flags(options)))
    set_parallel_context(config.parallel_config)
    set_seed(0)
    backend = parallel_state.get_backend()

    clock = StepClock(backend, options.warm_up, lambda: sgemm_gflops(options.threads))
    before_model = peak_memory_mb()
    samples = config.training_config.training_iters * config.dataset_config.global_batch_size
    rows = RandomTokens(options.vocab, options.seq, samples)
    pretrain(
        lambda samples: (rows, None, None),
        lambda **where: GPTModel(config.model_config, **where),
        all_config=config,
        callbacks=[clock],
    )
    if backend.rank == 0:
        flops = training_flops(config.model_config, config.dataset_config.global_batch_size)
        tokens = config.dataset_config.global_batch_size * options.seq
        rates = figures(statistics.median(clock.seconds), max(options.known_peak, clock.rate), flops, tokens)
        more = {
            "blas_cores": blas.cores(),
            "peak_rss_mb": round(peak_memory_mb()),
            "above_interpreter_mb": round(peak_memory_mb() - before_model),
            "comm_ms": round(clock.communication_seconds * 1e3 / options.steps, 1),
        }
        (options.out / "figures.json").write_text(json.dumps({**rates, **more}))


def main() -> None:
    """Launch the ranks and print what rank 0 measured."""
    options = parse()
    if options.out:
        work(options)
        return
    if options.only_peak:
        print(sgemm_gflops(options.threads))
        return
    from pynative.startup.launch import msrun_command, quiet_environment

    with tempfile.TemporaryDirectory() as out:
        world = options.tp * options.pp * options.dp
        hidden = {"--out": out, "--known-peak": str(best_known_gflops(world * options.threads))}
        arguments = [*(text for option in hidden.items() for text in option), *sys.argv[1:]]
        command = msrun_command(__file__, arguments, world, Path(out) / "log")
        done = subprocess.run(command, capture_output=True, text=True, env=quiet_environment(), cwd=out)
        if done.returncode:
            logs = [path.read_text()[-2000:] for path in sorted((Path(out) / "log").glob("worker_*"))]
            raise SystemExit("\n".join([done.stderr[-2000:], *logs]))
        settings = {name: value for name, value in vars(options).items() if name not in HIDDEN}
        print(json.dumps({**settings, **json.loads((Path(out) / "figures.json").read_text())}))


if __name__ == "__main__":
    main()
