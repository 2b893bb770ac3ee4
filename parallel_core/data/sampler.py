"""The samples that a data-parallel rank reads, and their order: Megatron's two samplers.

A global micro-batch is micro_batch_size samples on each of data_parallel_size ranks. Each item that a sampler gives is
one rank's part of it, a list of micro_batch_size sample numbers (fewer, maybe none, at the end without `drop_last`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parallel_core.numerics.dtypes import Array


@dataclass
class _Sampler:
    """Settings of both samplers, and checks of them."""

    total_samples: int
    consumed_samples: int
    """The number of samples consumed by all ranks in all epochs: the next sample is the first one behind them."""
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def __post_init__(self) -> None:
        if self.total_samples <= 0:
            raise ValueError("the data have no sample: give more (--data-path) or a larger share (--split)")
        if self.micro_batch_size <= 0:
            raise ValueError(f"--micro-batch-size {self.micro_batch_size} must be positive")
        assert 0 <= self.data_parallel_rank < self.data_parallel_size
        self.micro_batch_times_data_parallel_size = self.micro_batch_size * self.data_parallel_size

    def __len__(self) -> int:
        """The number of samples in the data, as in Megatron (not of micro-batches)."""
        return self.total_samples


@dataclass
class MegatronPretrainingSampler(_Sampler):
    """Sampler in the data's own order (`--dataloader-type single`): the first loop over it gives this rank's part of
    the data behind `consumed_samples`, a further one its part of all data. drop_last: leave out an incomplete global
    micro-batch at the end. Raises ValueError if no sample is left, and for a micro-batch below 1."""

    drop_last: bool = True
    """Whether an incomplete global micro-batch at the end is left out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consumed_samples >= self.total_samples:
            raise ValueError(
                f"all {self.total_samples} samples have been used ({self.consumed_samples} consumed): train on more "
                "data, or again on the same with --dataloader-type cyclic"
            )

    def __iter__(self) -> Iterator[list[int]]:
        step = self.micro_batch_times_data_parallel_size
        mine = self.data_parallel_rank * self.micro_batch_size
        start, self.consumed_samples = self.consumed_samples, 0
        for begin in range(start, self.total_samples, step):
            if begin + step > self.total_samples and self.drop_last:
                return
            first = min(begin + mine, self.total_samples)
            yield list(range(first, min(first + self.micro_batch_size, self.total_samples)))


@dataclass
class MegatronPretrainingRandomSampler(_Sampler):
    """Sampler in a new random order each epoch (`--dataloader-type cyclic`); a loop over it gives this rank's part
    of what is left of the epoch, without samples that do not fill a global micro-batch. data_sharding: each rank
    shuffles a fixed part of the data, else they are shuffled as a whole and dealt to the ranks. Raises ValueError if
    the data do not fill a global micro-batch, for consumed samples that are no multiple of one, and for a micro-batch
    below 1."""

    data_sharding: bool
    """Whether each rank shuffles a fixed part of the data; else they are shuffled as a whole and dealt to the ranks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        step = self.micro_batch_times_data_parallel_size
        self.active_total_samples = self.total_samples - self.total_samples % step
        if not self.active_total_samples:
            raise ValueError(
                f"{self.total_samples} samples are fewer than one micro-batch on each rank ({step}): give more data or "
                "a smaller --micro-batch-size"
            )
        if self.consumed_samples % step:
            raise ValueError(
                f"{self.consumed_samples} consumed samples are not a whole number of global micro-batches of {step}: "
                "go on with the micro-batch and data-parallel size of the run so far"
            )

    @property
    def epoch(self) -> int:
        """The number of the next sample's epoch, from 0, which is the seed of its order."""
        return self.consumed_samples // self.active_total_samples

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order_by_shard() if self.data_sharding else self._order_of_all()
        # Every rank gets the same number; with data that do not divide evenly Megatron gives some ranks one more.
        left = self.active_total_samples - self.consumed_samples % self.active_total_samples
        for number in range(left // self.micro_batch_times_data_parallel_size):
            self.consumed_samples += self.micro_batch_times_data_parallel_size
            yield order[number * self.micro_batch_size : (number + 1) * self.micro_batch_size].tolist()

    def _order_by_shard(self) -> Array:
        samples = self.total_samples // self.micro_batch_times_data_parallel_size * self.micro_batch_size
        used = self.consumed_samples % self.active_total_samples // self.data_parallel_size
        return random_permutation(samples, seed=self.epoch)[used:] + self.data_parallel_rank * samples

    def _order_of_all(self) -> Array:
        # Only whole micro-batches; sample i goes to rank i mod the number of ranks.
        samples = self.total_samples // self.micro_batch_size * self.micro_batch_size
        used = self.consumed_samples % self.active_total_samples
        return random_permutation(samples, seed=self.epoch)[used:][self.data_parallel_rank :: self.data_parallel_size]


def endless(sampler: MegatronPretrainingRandomSampler) -> Iterator[list[int]]:
    """The micro-batches of a sampler from its next sample on, one epoch after the other, without end."""
    while True:
        yield from sampler


def random_permutation(number: int, seed: int) -> Array:
    """The permutation of 0 ... number - 1 that torch.randperm gives after manual_seed(seed), int64 [number];
    for a number below 214,748,364 and a seed below 2^32.

    Like torch it draws 32 bits at a time from a Mersenne twister, and exchanges element i with one from i on.
    """
    bits = np.random.RandomState(seed).randint(0, 1 << 32, size=number, dtype=np.uint32)
    partners = np.arange(number) + bits % np.arange(number, 0, -1)
    order = list(range(number))
    for i, partner in enumerate(partners[:-1].tolist()):
        order[i], order[partner] = order[partner], order[i]
    return np.array(order, dtype=np.int64)
