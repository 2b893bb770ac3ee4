"""The data of whole training steps, for one data-parallel rank."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import numpy as np

from parallel_core.data.sampler import MegatronPretrainingRandomSampler, MegatronPretrainingSampler, endless
from parallel_core.numerics.dtypes import Array

Batch = dict[str, Array]
"""The arrays of a sample, stacked: each has a first axis of rows."""


class Samples(Protocol):
    """A data set: anything with a length whose items are dicts of arrays.

    Samples may differ in length where it has a method `collate`, which makes a batch of a list of them.
    """

    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, i: int, /) -> Batch:
        """Sample `i`, from 0."""


def stacked(samples: Sequence[Batch]) -> Batch:
    """A batch with these samples, all of one length, as its rows."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


class FirstSamples:
    """The first samples of a data set, over and over (--max_train_samples)."""

    def __init__(self, dataset: Samples, samples_per_epoch: int, size: int) -> None:
        """samples_per_epoch: how many of the first samples, at most all. size: the number of samples altogether; of a
        data set without a sample it is 0."""
        self.dataset, self.samples_per_epoch = dataset, min(samples_per_epoch, len(dataset))
        self._size = size if self.samples_per_epoch else 0
        self.collate = getattr(dataset, "collate", stacked)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> Batch:
        return self.dataset[i % self.samples_per_epoch]

    def documents_of(self, i: int) -> str:
        """The number in the data set of sample `i` and, where the data set tells them, its documents, as text."""
        return described(self.dataset, i % self.samples_per_epoch)


class StepItem(dict[str, Array]):
    """A step's batch that knows which samples of the data set its rows are."""

    def __init__(self, batch: Batch, dataset: Samples, samples: Sequence[int]) -> None:
        super().__init__(batch)
        self.dataset, self.samples = dataset, samples

    def described(self, row: int) -> str:
        """The number and the documents of the sample in a row, as text, as far as the data set tells them."""
        return described(self.dataset, self.samples[row])


def described(dataset: Samples, sample: int) -> str:
    """The number and the documents of a sample, as text, as far as the data set tells them (by
    `documents_of(sample)`)."""
    tells = getattr(dataset, "documents_of", None)
    return f"sample {sample}{f': {tells(sample)}' if tells else ''}"


class StepLoader:
    """Gives one training step at a time: `micro_batch_num` micro-batches of this rank, one after the other.

    A step is a dict of arrays with micro_batch_num * micro_batch_size rows; row k * micro_batch_size + j is sample j of
    micro-batch k. The last step of the data, if it is not complete, is left out; with drop_last False it has
    fewer rows, maybe none. With `prefetch` the next step is read in a thread while the caller works on this one.
    """

    def __init__(
        self,
        dataset: Samples,
        sampler: Iterable[Sequence[int]],
        micro_batch_num: int | Callable[[int], int],
        *,
        drop_last: bool = True,
        prefetch: bool = True,
    ) -> None:
        """sampler: gives the numbers of the samples of one micro-batch after the other. micro_batch_num: micro-batches
        of each step, or a function that gives those of the next step from the number of micro-batches given before.
        Raises ValueError for a number below 1.
        """
        if isinstance(micro_batch_num, int) and micro_batch_num <= 0:
            raise ValueError(
                f"{micro_batch_num} micro-batches a step: --global-batch-size must be at least "
                "--micro-batch-size * data-parallel size"
            )
        self.dataset = dataset
        self.sampler = sampler
        self.micro_batch_num = micro_batch_num if callable(micro_batch_num) else lambda given: micro_batch_num
        self._given = 0
        self.drop_last, self.prefetch = drop_last, prefetch

    def in_micro_batches(self) -> "StepLoader":
        """A loader of the same data in steps of one micro-batch."""
        return StepLoader(self.dataset, self.sampler, 1, drop_last=self.drop_last, prefetch=self.prefetch)

    def __iter__(self) -> Iterator[Batch]:
        steps = self._steps()
        if not self.prefetch:
            yield from steps
            return
        reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        try:
            coming = reader.submit(next, steps, None)
            while (step := coming.result()) is not None:
                coming = reader.submit(next, steps, None)
                yield step
        finally:
            # The garbage collector may close an unfinished iterator in any thread, also in one that is being started:
            # there to wait for the reader's end may never end.
            reader.shutdown(wait=False, cancel_futures=True)

    def _steps(self) -> Iterator[Batch]:
        micro_batches = iter(self.sampler)
        while step := list(islice(micro_batches, count := self.micro_batch_num(self._given))):
            if len(step) < count and self.drop_last:
                return
            self._given += count
            yield self._read([i for micro_batch in step for i in micro_batch])

    def _read(self, rows: Sequence[int]) -> Batch:
        collate = getattr(self.dataset, "collate", stacked)
        batch = collate([self.dataset[i] for i in rows or (0,)])
        return StepItem({name: array[: len(rows)] for name, array in batch.items()}, self.dataset, rows)


def build_step_loader(
    dataset: Samples,
    consumed_samples: int,
    *,
    micro_batch_size: int,
    micro_batch_num: int | Callable[[int], int],
    data_parallel_rank: int,
    data_parallel_size: int,
    dataloader_type: str = "single",
    data_sharding: bool = True,
    drop_last: bool = True,
    prefetch: bool = True,
) -> StepLoader:
    """The loader of one data-parallel rank's steps, from sample `consumed_samples` (counted over all ranks) on.

    micro_batch_num: this rank's micro-batches of a step, or a function as `StepLoader` takes it. dataloader_type:
    "single" reads the data once and in order, "cyclic" in a new random order each epoch, for ever. data_sharding: with
    "cyclic", each rank shuffles a part of the data of its own; False: all data are shuffled, then dealt to the ranks.
    drop_last: with "single", leave out an incomplete last step. prefetch: read the next step in a thread. Raises
    ValueError for another dataloader_type, a micro-batch or a number of them below 1, and data without a sample; with
    "single" where no sample is left; with "cyclic" where the data do not fill a micro-batch of all ranks, and for
    consumed samples that are no multiple of one.
    """
    places = (len(dataset), consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
    sampler: Iterable[Sequence[int]]
    if dataloader_type == "single":
        sampler = MegatronPretrainingSampler(*places, drop_last=drop_last)
    elif dataloader_type == "cyclic":
        sampler = endless(MegatronPretrainingRandomSampler(*places, data_sharding=data_sharding))
    else:
        raise ValueError(f"--dataloader-type {dataloader_type} is not available; choose single or cyclic")
    return StepLoader(dataset, sampler, micro_batch_num, drop_last=drop_last, prefetch=prefetch)
