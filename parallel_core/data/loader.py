"""The data of whole training steps, for one data-parallel rank."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import numpy as np

from parallel_core.data.sampler import MegatronPretrainingRandomSampler, MegatronPretrainingSampler, endless

Batch = dict[str, np.ndarray]
"""The arrays of a sample, stacked: each has a first axis of rows."""


class Samples(Protocol):
    """A data set: anything with a length whose items are dicts of arrays."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, i: int, /) -> Batch:
        """Sample `i`."""


class StepLoader:
    """Gives one training step at a time: `micro_batch_num` micro-batches of this rank, one after the other.

    A step is a dict of arrays with micro_batch_num * micro_batch_size rows; row k * micro_batch_size + j is sample j of
    micro-batch k. Incomplete steps at the end of the data are left out. With `prefetch` the next step is read in a
    thread while the caller works on this one.
    """

    def __init__(
        self,
        dataset: Samples,
        sampler: Iterable[Sequence[int]],
        micro_batch_num: int | Callable[[int], int],
        *,
        vocab_size: int | None = None,
        prefetch: bool = True,
    ) -> None:
        """`sampler` gives the sample numbers of one micro-batch after the other; `vocab_size` bounds the ids.

        micro_batch_num: of each step, or a function of how many were given in the steps before.
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
        self.vocab_size = vocab_size
        self.prefetch = prefetch

    def __iter__(self) -> Iterator[Batch]:
        steps = self._steps()
        if not self.prefetch:
            yield from steps
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as reader:
            coming = reader.submit(next, steps, None)
            while (step := coming.result()) is not None:
                coming = reader.submit(next, steps, None)
                yield step

    def _steps(self) -> Iterator[Batch]:
        micro_batches = iter(self.sampler)
        while len(step := list(islice(micro_batches, count := self.micro_batch_num(self._given)))) == count:
            self._given += count
            yield self._read([i for micro_batch in step for i in micro_batch])

    def _read(self, rows: Sequence[int]) -> Batch:
        samples = [self.dataset[i] for i in rows]
        batch = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
        if self.vocab_size is not None and (largest := int(batch["tokens"].max())) >= self.vocab_size:
            raise ValueError(
                f"the data have token id {largest}, but the vocabulary has {self.vocab_size} entries: the data were "
                "made with another tokenizer; give that one, or preprocess the text again"
            )
        return batch


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
    vocab_size: int | None = None,
    prefetch: bool = True,
) -> StepLoader:
    """The steps of one rank from sample `consumed_samples` (counted over all ranks) on, as Megatron's flags say.

    `dataloader_type` "single" reads the data once and in order, "cyclic" in a new random order each epoch for ever.
    """
    places = (len(dataset), consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
    sampler: Iterable[Sequence[int]]
    if dataloader_type == "single":
        sampler = MegatronPretrainingSampler(*places)
    elif dataloader_type == "cyclic":
        sampler = endless(MegatronPretrainingRandomSampler(*places, data_sharding=data_sharding))
    else:
        raise ValueError(f"--dataloader-type {dataloader_type} is not available; choose single or cyclic")
    return StepLoader(dataset, sampler, micro_batch_num, vocab_size=vocab_size, prefetch=prefetch)
