"""Mixtures of data sets, and the builder of train, valid and test data."""

import math
from collections.abc import Callable, Iterator, Sequence
from operator import sub

import numpy as np
from numpy.typing import NDArray

from parallel_core.config.notations import Blend
from parallel_core.data.dataset_config import GPTDatasetConfig, Interval, Split, normalize
from parallel_core.data.gpt_dataset import GPTDataset, MockGPTDataset, Sample, Sequences
from parallel_core.data.index_cache import Arrays, cached, fingerprint

_STEPS_AT_ONCE = 1 << 14

BlendingIndex = tuple[NDArray[np.int16], NDArray[np.int64]]
"""(number of the data set, number of the sample in it), each [samples]."""


def blending_index(weights: Sequence[float], size: int) -> BlendingIndex:
    """(number of the data set, number of the sample in it), from 0, each [size], of the samples of a blend: data sets
    are drawn in proportion to `weights`, whose sum is 1, the one that lags furthest behind first; samples of each in
    order."""
    return _with_sample_numbers(np.fromiter(_laggards(weights, 0, [0] * len(weights), size), np.int16, count=size))


def exhaustive_blending_index(sizes: Sequence[int]) -> BlendingIndex:
    """(number of the data set, number of the sample in it), from 0, each [sum of `sizes`], of the samples of a blend
    that takes every sample of data sets of these sizes once: data sets are drawn in proportion to the sizes, samples of
    each in order."""
    total = sum(sizes)
    chosen = np.empty(total, np.int16)
    taken = [0] * len(sizes)
    active = [part for part, size in enumerate(sizes) if size]
    done = 0
    while active:
        # The remaining data sets are blended until one of them runs out.
        weights = [sizes[part] / total for part in active]
        steps = _laggards(weights, done, [taken[part] for part in active], total - done)
        done = _take_until_one_is_spent(steps, active, sizes, taken, chosen, done)
        active = [part for part in active if taken[part] < sizes[part]]
    return _with_sample_numbers(chosen)


def _take_until_one_is_spent(
    steps: Iterator[int],
    active: Sequence[int],
    sizes: Sequence[int],
    taken: list[int],
    chosen: NDArray[np.int16],
    done: int,
) -> int:
    for choice in steps:
        part = active[choice]
        chosen[done] = part
        taken[part] += 1
        done += 1
        if taken[part] == sizes[part]:
            break
    return done


def _laggards(weights: Sequence[float], first: int, taken: list[int], number: int) -> Iterator[int]:
    """The number of the data set that is taken at each of `number` steps from step `first` on: the one furthest behind
    its share. `taken`, the samples taken of each, is kept up to date."""
    for begin in range(first, first + number, _STEPS_AT_ONCE):
        steps = np.maximum(np.arange(begin, min(begin + _STEPS_AT_ONCE, first + number), dtype=np.float64), 1.0)
        for shares in np.multiply.outer(steps, np.asarray(weights)).tolist():
            errors = list(map(sub, shares, taken))
            choice = errors.index(max(errors))
            taken[choice] += 1
            yield choice


def _with_sample_numbers(chosen: NDArray[np.int16]) -> BlendingIndex:
    numbers = np.empty(len(chosen), np.int64)
    for part in np.unique(chosen):
        mine = chosen == part
        numbers[mine] = np.arange(np.count_nonzero(mine))
    return chosen, numbers


class BlendedDataset:
    """Samples drawn from data sets in fixed proportions."""

    def __init__(
        self, datasets: Sequence[GPTDataset], weights: Sequence[float], size: int | None, config: GPTDatasetConfig
    ) -> None:
        """weights: one for each data set; if `size` is None the data sets' lengths: all samples are used once. size:
        the number of samples. Raises ValueError if a data set has fewer samples than are drawn from it, and for a
        damaged file of indices."""
        self.datasets = list(datasets)
        self.size = size
        self.weights = list(weights) if size is None else normalize(weights)
        split = self.datasets[0].index_split.name
        stem = fingerprint({"weights": self.weights, "size": size}) + f"-BlendedDataset-{split}"
        index = cached(config.path_to_cache, stem, ("dataset_index", "dataset_sample_index"), self._build_index)
        self.dataset_index, self.dataset_sample_index = index["dataset_index"], index["dataset_sample_index"]
        self._check_that_parts_suffice(split)

    def _build_index(self) -> Arrays:
        if self.size is None:
            dataset_index, sample_index = exhaustive_blending_index([int(weight) for weight in self.weights])
        else:
            dataset_index, sample_index = blending_index(self.weights, self.size)
        return {"dataset_index": dataset_index, "dataset_sample_index": sample_index}

    def _check_that_parts_suffice(self, split: str) -> None:
        needed = np.bincount(self.dataset_index, minlength=len(self.datasets))
        for part, count in zip(self.datasets, needed.tolist(), strict=True):
            if count > len(part):
                raise ValueError(
                    f"the {split} blend takes {count} samples of a part that has {len(part)}; "
                    "raise mid_level_dataset_surplus"
                )

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.dataset_index)

    def __getitem__(self, i: int) -> Sample:
        """Sample `i`, and under "dataset_id" the number of the data set that it is from."""
        part = int(self.dataset_index[i])
        return {"dataset_id": np.array(part), **self.datasets[part][int(self.dataset_sample_index[i])]}

    def documents_of(self, i: int) -> str:
        """The text by which the data set of sample `i` names what the sample is made of (its method `documents_of`);
        for a data set without that method a text with the numbers, from 0, of the data set and of the sample in it."""
        number, sample = int(self.dataset_index[i]), int(self.dataset_sample_index[i])
        tells = getattr(self.datasets[number], "documents_of", None)
        return str(tells(sample)) if tells else f"sample {sample} of data set {number}"


Dataset = GPTDataset | BlendedDataset


class BlendedMegatronDatasetBuilder:
    """Builds the data sets of the three splits from a GPTDatasetConfig, as Megatron's class of this name."""

    def __init__(
        self,
        cls: type[GPTDataset],
        sizes: Sequence[int | None],
        is_built_on_rank: Callable[[], bool],
        config: GPTDatasetConfig,
    ) -> None:
        """cls: the class of the data set of one prefix. sizes: the numbers of samples needed of train, valid and test;
        None: one epoch, which a blend with weights does not have.

        If `is_built_on_rank()` is false nothing is opened and every split is None.
        """
        self.cls = cls
        self.sizes = list(sizes)
        self.is_built_on_rank = is_built_on_rank
        self.config = config
        self._opened: dict[str, Sequences] = {}

    def build(self) -> list[Dataset | None]:
        """Train, valid and test data; None for a split that gets no share of the data, and for all on a rank that
        builds none (`is_built_on_rank`).

        A split has at least as many samples as are needed, but a blend of several files without weights at most one
        epoch. Raises ValueError for a split that is asked for samples and has no tokens; for a file of a blend without
        a sample for the split (unless 0 samples are needed); for a blend with weights if one of these is not finite or
        not above 0, if the number of samples is None, or if it takes more samples of a file than that was built with
        (with `blend_per_split` the weight of a blend of one file is not read); for a damaged file of indices; and as
        `open` and, without `blend_per_split`, `GPTDatasetConfig.split_intervals`.
        """
        if not self.is_built_on_rank():
            return [None] * len(Split)
        if self.config.blend_per_split is not None:
            return [
                self._build_split(split, blend, (0.0, 1.0)) if blend is not None else None
                for split, blend in zip(Split, self.config.blend_per_split, strict=True)
            ]
        blend: Blend = self.config.blend or ([""], None)  # mock data has no path
        return [
            self._build_split(split, blend, interval) if interval is not None else None
            for split, interval in zip(Split, self.config.split_intervals, strict=True)
        ]

    def _build_split(self, split: Split, blend: Blend, interval: Interval) -> Dataset:
        prefixes, weights = blend
        size = self.sizes[split.value]
        # Megatron ignores the weight of a single prefix where each split has its own data.
        if len(prefixes) == 1 and (weights is None or self.config.blend_per_split is not None):
            return self._build_part(prefixes[0], split, interval, size)
        if weights is None:
            return self._build_blend_by_size(prefixes, split, interval, size)
        if size is None:
            raise ValueError(f"the {split.name} data are a blend with weights: the number of samples must be given")
        return self._build_weighted_blend(prefixes, normalize(_check_weights(weights)), split, interval, size)

    def _build_blend_by_size(
        self, prefixes: Sequence[str], split: Split, interval: Interval, size: int | None
    ) -> BlendedDataset:
        parts = [self._build_part(prefix, split, interval, None) for prefix in prefixes]
        lengths = [len(part) for part in parts]
        for prefix, length in zip(prefixes, lengths, strict=True):
            _check_part(prefix, split, length, size)
        return BlendedDataset(parts, lengths, None if size is None else min(size, sum(lengths)), self.config)

    def _build_weighted_blend(
        self, prefixes: Sequence[str], weights: Sequence[float], split: Split, interval: Interval, size: int
    ) -> BlendedDataset:
        shares = [math.ceil(size * weight) for weight in weights]
        # Slightly more than each part's share: blending may take one sample more than rounding says.
        built = [math.ceil(share * (1 + self.config.mid_level_dataset_surplus)) for share in shares]
        parts = [
            self._build_part(prefix, split, interval, needed) for prefix, needed in zip(prefixes, built, strict=True)
        ]
        for prefix, part in zip(prefixes, parts, strict=True):
            _check_part(prefix, split, len(part), size)
        return BlendedDataset(parts, weights, sum(shares), self.config)

    def _build_part(self, prefix: str, split: Split, interval: Interval, size: int | None) -> GPTDataset:
        sequences = self.open(prefix)
        indices = cut(len(sequences.sequence_lengths), interval)
        return self.cls(sequences, indices, size, split, self.config, prefix or "the mock data")

    def open(self, prefix: str) -> Sequences:
        """The sequences of a prefix, opened at the first call by the method `open` of the data set's class, which gets
        None for "" (mock data). Raises as that method."""
        if prefix not in self._opened:
            self._opened[prefix] = self.cls.open(prefix or None, self.config)
        return self._opened[prefix]


def cut(number: int, interval: Interval) -> NDArray[np.int32]:
    """The numbers, from 0, of those of `number` sequences that lie in an interval: (begin, end) as fractions of
    `number`, both rounded; the end is not in it."""
    begin, end = (round(fraction * float(number)) for fraction in interval)
    return np.arange(begin, end, dtype=np.int32)


def _check_weights(weights: Sequence[float]) -> Sequence[float]:
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"--data-path: weights must be positive, not {list(weights)}; leave out what has weight 0")
    return weights


def _check_part(prefix: str, split: Split, length: int, size: int | None) -> None:
    if length == 0 and size != 0:
        raise ValueError(
            f"the {split.name} split of {prefix} has no sample: take it out of the blend, or give it a larger share "
            "in --split"
        )


def build_train_valid_test_datasets(
    config: GPTDatasetConfig, sizes: Sequence[int | None]
) -> tuple[Dataset | None, Dataset | None, Dataset | None]:
    """Train, valid and test data of `config` with at least `sizes` samples each (None: one epoch, which is also the
    most that a blend of several files without weights gives), mock data where `config.mock`; None for a split without
    a share. Raises ValueError as `BlendedMegatronDatasetBuilder.build`."""
    cls = MockGPTDataset if config.mock else GPTDataset
    train, valid, test = BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()
    return train, valid, test
