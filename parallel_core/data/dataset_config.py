"""Options of the training data, under Megatron's names."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path

import numpy as np

from parallel_core.config.notations import Blend, split_shares
from parallel_core.data.tokenizers import Facts, MegatronTokenizer

Interval = tuple[float, float]
"""Begin and end of a part of a data set, as fractions of it."""


class Split(Enum):
    """The three parts of the data."""

    train = 0
    valid = 1
    test = 2


@dataclass(kw_only=True)
class GPTDatasetConfig:
    """The sources and the form of the samples. Raises ValueError unless exactly one of `blend`, `blend_per_split` and
    `mock` is given, `split` with the first and the last but not with `blend_per_split`, and a sample has tokens."""

    random_seed: int
    """Seed of the order of documents and samples."""
    sequence_length: int
    """Tokens in a sample, s."""
    tokenizer: Facts | MegatronTokenizer
    """Gives the ids of end of document and padding, and the size of the vocabulary."""
    blend: Blend | None = None
    """Data that all three splits are cut from (`--data-path`)."""
    blend_per_split: Sequence[Blend | None] | None = None
    """Data of train, valid and test (`--train-data-path` and so on), each used whole; instead of `blend`."""
    split: str | None = None
    """Shares of train, valid and test, such as "969,30,1"; needed with `blend` and with `mock`."""
    mock: bool = False
    """Whether to make numbers up instead of reading files (`--mock-data`)."""
    path_to_cache: str | Path | None = None
    """Directory that keeps the indices from one run to the next (`--data-cache-path`)."""
    mid_level_dataset_surplus: float = 0.005
    """Fraction by which each part of a blend is made longer than its weight asks for, against rounding."""
    mmap_bin_files: bool = True
    """Whether token files are mapped into memory (False with `--no-mmap-bin-files`) instead of read at once."""
    reset_position_ids: bool = False
    """Whether positions start from 0 again after each end of document."""
    reset_attention_mask: bool = False
    """Whether tokens see only their own document: samples say where theirs begins."""
    eod_mask_loss: bool = False
    """Whether the prediction that follows an end of document doesn't count."""
    drop_last_partial_validation_sequence: bool = True
    """Whether the tokens left over at the end of the validation data are dropped (else: padded to a sample)."""
    add_extra_token_to_sequence: bool = True
    """Whether a sample reads s + 1 tokens, so that its last label is a real one."""

    def __post_init__(self) -> None:
        sources = [self.blend is not None, self.blend_per_split is not None, self.mock]
        if sum(sources) != 1:
            raise ValueError(
                "training data: give exactly one of --data-path, --train-data-path with --valid-data-path and "
                f"--test-data-path, or --mock-data ({sum(sources)} were given)"
            )
        if self.blend_per_split is None and self.split is None:
            raise ValueError('--split is missing: relative sizes of train, valid and test, such as "969,30,1"')
        if self.blend_per_split is not None and self.split is not None:
            raise ValueError("--split cuts up --data-path; leave it out when each split has a path of its own")
        if self.sequence_length < 1:
            raise ValueError(f"--seq-length {self.sequence_length}: a sample needs at least one token")

    @property
    def split_intervals(self) -> list[Interval | None]:
        """The part of the data that each split gets, in the order of `Split`; None for a split that gets nothing.
        Raises ConfigError as `parse_split`, AssertionError without `split`."""
        assert self.split is not None
        return parse_split(self.split)


def parse_split(split: str) -> list[Interval | None]:
    """The intervals of train, valid and test in a text: [(0.0, 0.9), (0.9, 0.98), (0.98, 1.0)] from "90,8,2"; None
    where the share is 0 or vanishes in rounding. Missing shares are 0. Raises ConfigError for a text that is not one to
    three shares, and for shares that are all 0."""
    shares = split_shares(split)
    shares += [0.0] * (len(Split) - len(shares))
    ends = [0.0]
    for share in normalize(shares):
        ends.append(ends[-1] + share)
    return [(begin, end) if end > begin else None for begin, end in pairwise(ends)]


def normalize(weights: Sequence[float]) -> list[float]:
    """`weights` divided by their sum, to the last bit as in Megatron, whose indices depend on it."""
    values = np.array(weights, dtype=np.float64)
    return (values / np.sum(values)).tolist()
