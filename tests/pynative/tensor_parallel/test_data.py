"""The items that a tensor-parallel group's first rank draws, on all its ranks."""

import numpy as np

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job


def drawn(backend, items: int) -> list[list[int]]:
    """The tokens that this rank gets, until StopIteration, of an iterator with so many items on the first rank."""
    from pynative.training.utils import get_batch_on_this_tp_rank

    found, data = [], iter([{"tokens": np.full((1, 2), number)} for number in range(items)])
    with job(backend, config_of(f"{TINY} --tensor-model-parallel-size {backend.world_size}", backend.world_size)):
        while True:
            try:
                batch = get_batch_on_this_tp_rank(data if backend.rank == 0 else None)
            except StopIteration:
                return found
            found += batch["tokens"].asnumpy().tolist()


def test_an_iterator_ends_on_all_ranks():
    """When the first rank's iterator is at its end, get_batch_on_this_tp_rank raises StopIteration on every rank."""
    for world in (1, 2):
        assert run(world, drawn, 2) == [[[0, 0], [1, 1]]] * world
