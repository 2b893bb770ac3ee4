"""Random streams by position instead of by history.

Megatron's tracker hands out states in the order of the calls. Here a model's random numbers are functions of where they
are used. A dropout mask depends on (seed, iteration, micro-batch, layer, place in the layer) and on global positions,
so it is the same under recompute, for any number of micro-batches in flight and for any layout: the mask of a shard is
the shard of the mask.

Scripts draw their own numbers from named streams, as in Megatron:

    with get_rng_tracer().rng_fork(MODEL_PARALLEL_RNG):
        x = kernels.dropout(x, 0.1, get_rng_tracer().next_key())

A stream's key depends on seed, iteration, micro-batch and virtual pipeline stage, on the stream, on the indices of this
rank by which the stream's numbers differ (`DISTINGUISHED`), and on how many keys were drawn from it in a row at one
step position (`pynative.step_position`). A checkpoint has none of these counts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np

from pynative import parallel_state
from pynative.local import Local
from pynative.step_position import StepPosition, get_step_position, set_step_position

Key = tuple[int, ...]

DATA_PARALLEL_RNG = "data-parallel-rng"
MODEL_PARALLEL_RNG = "model-parallel-rng"
EXPERT_PARALLEL_RNG = "expert-parallel-rng"

DISTINGUISHED: dict[str, tuple[Callable[[], int], ...]] = {
    DATA_PARALLEL_RNG: (),
    MODEL_PARALLEL_RNG: (parallel_state.get_tensor_model_parallel_rank, parallel_state.get_context_parallel_rank),
    EXPERT_PARALLEL_RNG: (
        parallel_state.get_expert_model_parallel_rank,
        parallel_state.get_expert_tensor_parallel_rank,
        parallel_state.get_context_parallel_rank,
    ),
}
"""Stream -> the ranks by which its numbers differ. The first stream is used outside of any fork: for what is the same
on all ranks of a model, replicated activations and decisions that must agree. The second is for activations that are
cut, the third for those inside experts. All differ between micro-batches and pipeline stages."""


class States(NamedTuple):
    """The states of a tracer, taken by `get_states` before a forward and given to `set_states` before its repetition:
    the step position, and the number of keys drawn there by stream."""

    position: StepPosition
    drawn: dict[str, int]
    """The number of keys drawn at that position, by stream."""


@dataclass(frozen=True)
class _Stream:
    seed: int | None
    """The stream's own seed; None: the tracer's."""
    ranks: tuple[Callable[[], int], ...]


class RNGStateTracer:
    """A run's seed and the named streams; a key depends on the StepPosition at which it is asked for."""

    def __init__(self, seed: int = 1234) -> None:
        self.seed = seed
        self.reset()

    def key(self, layer: int, place: int) -> Key:
        """The key of the dropout mask at one place of one layer, for the micro-batch under way."""
        position = get_step_position()
        return (self.seed, position.iteration, position.micro_batch, layer, place)

    def reset(self) -> None:
        """Forget the streams that were added, the counts of drawn keys, and the fork under way: the current stream is
        DATA_PARALLEL_RNG."""
        self._streams = {name: _Stream(None, ranks) for name, ranks in DISTINGUISHED.items()}
        self._name = Local(DATA_PARALLEL_RNG)
        self._states = Local(States(get_step_position(), {}))

    def add(self, name: str, seed: int) -> None:
        """Add a stream with a seed of its own in place of the run's; its keys do not depend on the tensor-, context-
        and expert-parallel rank. Raises ValueError if another stream has the name, or another added stream the seed."""
        if name in self._streams:
            raise ValueError(f"random stream {name!r} exists already; choose another name")
        if any(stream.seed == seed for stream in self._streams.values()):
            raise ValueError(f"random stream {name!r}: another one has the seed {seed}; choose another seed")
        self._streams[name] = _Stream(seed, ())

    @contextmanager
    def rng_fork(self, name: str = MODEL_PARALLEL_RNG) -> Iterator[None]:
        """Make `name` the current stream within the block. Raises ValueError for an unknown name."""
        if name not in self._streams:
            raise ValueError(f"random stream {name!r} does not exist: add it, or use one of {', '.join(self._streams)}")
        with self._name.holding(name):
            yield

    fork = rng_fork

    def next_key(self) -> Key:
        """The next key of the current stream (that of the innermost `rng_fork` block; DATA_PARALLEL_RNG outside of such
        a block), for example for `kernels.dropout`."""
        name, drawn = self._name.value, self._drawn()
        drawn[name] = drawn.get(name, 0) + 1
        stream = self._streams[name]
        seed = self.seed if stream.seed is None else stream.seed
        ranks = [rank() for rank in stream.ranks] if parallel_state.model_parallel_is_initialized() else []
        return (seed, *_pass(), crc32(name.encode()), *ranks, drawn[name])

    def generator(self) -> np.random.Generator:
        """A numpy generator that starts from the current stream's next key."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self.next_key())))

    def get_states(self) -> States:
        """The step position, and a copy of the counts of keys drawn there."""
        return States(get_step_position(), dict(self._drawn()))

    def set_states(self, states: States) -> None:
        """Go back to where `get_states` was called: the step position and the counts of drawn keys are what they were.
        The current stream stays."""
        set_step_position(states.position)
        self._states.value = States(states.position, dict(states.drawn))

    def _drawn(self) -> dict[str, int]:
        """The counts of keys drawn at the current step position, by stream."""
        if self._states.value.position != get_step_position():
            self._states.value = States(get_step_position(), {})
        return self._states.value.drawn


def _pass() -> tuple[int, int, int]:
    """(Iteration, micro-batch, virtual pipeline stage), the last numbered over all stages' chunks."""
    iteration, micro_batch, chunk = get_step_position()
    if not parallel_state.model_parallel_is_initialized():
        return iteration, micro_batch, 0
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    return iteration, micro_batch, chunk * stages + parallel_state.get_pipeline_model_parallel_rank()


_tracer = RNGStateTracer()


def get_rng_tracer() -> RNGStateTracer:
    """This process's tracer."""
    return _tracer


def set_rng_seed(seed: int, dp_random_init: bool = False) -> None:
    """Start the streams of a run with this seed, at its first micro-batch; streams that were added are forgotten.

    dp_random_init, which starts replicas of MindSpeed-Core-MS from different numbers, must be False (else ValueError):
    initial values are the same on all replicas.
    """
    if dp_random_init:
        raise ValueError("set_rng_seed: dp_random_init=True is not available: replicas start equal; leave it out")
    set_step_position(StepPosition())
    _tracer.reset()
    _tracer.seed = seed
