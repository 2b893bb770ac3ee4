"""Random streams by position instead of by history.

Megatron's tracker hands out states in the order of the calls. Here a dropout mask is a function of (seed, iteration,
micro-batch, layer, place in the layer), so it is the same under recompute, for any number of micro-batches in flight
and for any tensor-parallel size: a mask of a cut activation is the cut of the mask.
"""

from dataclasses import dataclass

Key = tuple[int, ...]


@dataclass
class RNGStateTracer:
    """Where training stands; what a checkpoint needs to go on with the same masks is `seed` and the iteration."""

    seed: int = 1234
    iteration: int = 0
    micro_batch: int = 0
    """Number of the micro-batch within the global batch, over all data-parallel replicas."""

    def key(self, layer: int, place: int) -> Key:
        """The key of the mask at one place of one layer for the micro-batch at hand."""
        return (self.seed, self.iteration, self.micro_batch, layer, place)


_tracer = RNGStateTracer()


def get_rng_tracer() -> RNGStateTracer:
    """This process's position."""
    return _tracer


def set_rng_seed(seed: int) -> None:
    """Start the streams of a run."""
    _tracer.seed = seed
