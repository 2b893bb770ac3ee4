"""Helpers of the engine's tests: a job's parallel state inside a pool's rank, and small configurations."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

from mapping import init_configs_from_args, parse_args
from parallel_core.config import AllConfig

TINY = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 2 --train-iters 2 --lr 1e-3 --vocab-size 60 --padded-vocab-size 64 "
    "--tokenizer-type NullTokenizer --attention-dropout 0 --hidden-dropout 0 --init-method-std 0.2 --eval-iters 0"
)
"""Flags of a model small enough for a test and large enough for tp 4 and pp 2."""


def config_of(flags: str | Sequence[str], world_size: int) -> AllConfig:
    """The configuration of a command line for a job of `world_size` ranks."""
    argv = flags.split() if isinstance(flags, str) else [str(flag) for flag in flags]
    return init_configs_from_args(parse_args(argv, world_size=world_size))


@contextmanager
def job(backend, config: AllConfig) -> Iterator[None]:
    """Within the context this rank of a pool is set up for a configuration, as `set_parallel_context` sets up a
    launched one."""
    from pynative import parallel_state
    from pynative.startup import device
    from pynative.tensor_parallel.random import set_rng_seed

    parallel = config.parallel_config
    parallel.found_device = "CPU"
    device.initialize("CPU", parallel.kernels, parallel.threads or 1, backend.world_size, parallel.fused)
    parallel_state.initialize_from_config(parallel, backend)
    set_rng_seed(config.training_config.seed)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


@contextmanager
def rank_of_a_job(rank: int, world_size: int, **sizes) -> Iterator[None]:
    """Within the context this process has the parallel state of one rank of a job without other ranks; a group is the
    tuple of its ranks."""
    from pynative import parallel_state

    backend = SimpleNamespace(rank=rank, world_size=world_size, group=lambda ranks, name: ranks, prepare=len)
    parallel_state.initialize_model_parallel(**sizes, backend=backend)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
