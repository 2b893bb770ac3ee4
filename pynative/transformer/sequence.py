"""Which positions of the sequence this rank's hidden states are."""

from parallel_core.context import cut
from pynative import parallel_state
from pynative.context_parallel.batch import positions_here


def held_positions(config, length: int | None = None) -> tuple[tuple[int, int], ...]:
    """Global (start, stop) of the positions that this rank holds between tensor-parallel regions, in local order.

    Context parallelism gives a rank its part of the sequence; sequence parallelism the r-th of t equal pieces of that.

    Args:
        config: the ModelConfig.
        length: how many positions they are; None: what follows from --seq-length.
    """
    parallel = config.parallel_config
    pieces = parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1
    piece = length if length is not None else config.seq_length // (parallel.context_parallel_size * pieces)
    first = piece * parallel_state.get_tensor_model_parallel_rank() if pieces > 1 else 0
    return tuple((run.start, run.stop) for run in cut(positions_here(piece * pieces), first, first + piece))
