"""The training data of `--is-instruction-dataset`: samples of different lengths, and batches that training reads."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from parallel_core.config.notations import split_shares
from parallel_core.data.instruction.encoding import IGNORED
from parallel_core.data.instruction.samples import Conversations, Sample, SampleRules, sampled
from parallel_core.numerics.dtypes import Array


def split_bounds(split: str, size: int) -> list[tuple[int, int]]:
    """(first conversation, one after the last) of train, valid and test, among `size` conversations. The share of each
    is rounded; if the three sum to more or fewer than `size`, the first with a share gets as many fewer or more.
    Raises ConfigError for a `split` that is not one to three shares, or whose shares are all 0."""
    shares = split_shares(split)[:3]
    shares += [0.0] * (3 - len(shares))
    whole = sum(shares)
    counts = [round(share / whole * float(size)) for share in shares]
    counts[next(number for number, share in enumerate(shares) if share)] -= sum(counts) - size
    return list(pairwise(accumulate(counts, initial=0)))


def order_of_samples(
    first: int,
    last: int,
    samples: int,
    seed: int,
    *,
    shuffle: bool = True,
    shuffle_all: bool = False,
    batch: int | None = None,
    size: int | None = None,
) -> NDArray[np.int32]:
    """The numbers of the conversations first ... last - 1 in the order of training, in whole passes: as many as
    `samples` needs, at least one; empty if there are no conversations.

    shuffle: shuffle each pass anew. shuffle_all: then shuffle all passes together. batch: fill up each pass to whole
    batches of this size with the data's conversations 0, 1, ..., again from 0 behind the last. size: the number of all
    conversations of the data; None: `last`.
    """
    one_pass = np.arange(first, last, dtype=np.int64)
    if batch is not None and len(one_pass) % batch:
        filling = np.arange(batch - len(one_pass) % batch, dtype=np.int64)
        one_pass = np.append(one_pass, filling % (last if size is None else size))
    drawn = np.random.RandomState(seed)
    passes = []
    for _ in range(max(-(-samples // len(one_pass)), 1) if len(one_pass) else 0):
        this = one_pass.copy()
        if shuffle:
            drawn.shuffle(this)
        passes.append(this)
    order = np.concatenate(passes).astype(np.int32) if passes else np.zeros(0, np.int32)
    if shuffle_all:
        listed = order.tolist()
        random.Random(seed).shuffle(listed)
        order = np.array(listed, np.int32)
    return order


Batch = dict[str, Array]


@dataclass(frozen=True)
class Collator:
    """Pads samples of different lengths to a common one, and makes a batch of them."""

    pad: int
    multiple: int
    """The divisor of the length that samples are padded to."""
    left: bool = False
    """Whether padding stands before a sample, not behind it."""
    resets_positions: bool = False
    """Whether positions count from the start of each document."""

    def padded(self, samples: Sequence[Sample]) -> Batch:
        """The padded samples: input_ids, attention_mask (0: padding), labels (-100: no loss) and, where samples have
        documents or padding stands in front, document_starts; int32 [b, s]."""
        longest = max(len(sample["input_ids"]) for sample in samples)
        length = -(-max(longest, 1) // self.multiple) * self.multiple
        fillings = {"input_ids": self.pad, "attention_mask": 0, "labels": IGNORED}
        batch = {
            part: np.stack([self._filled(sample[part], length, filling) for sample in samples])
            for part, filling in fillings.items()
        }
        if self.left or "document_starts" in samples[0]:
            batch["document_starts"] = np.stack([self._starts(sample, length) for sample in samples])
        return batch

    def _filled(self, array: Array, length: int, filling: int) -> Array:
        missing = length - len(array)
        return np.pad(array, (missing, 0) if self.left else (0, missing), constant_values=filling).astype(np.int32)

    def _starts(self, sample: Sample, length: int) -> Array:
        """A sample's document starts [s] with padding: in front each token of padding is a document, behind all of it
        is one."""
        number = len(sample["input_ids"])
        starts = sample.get("document_starts", np.zeros(number, np.int32))
        missing = length - number
        if not self.left:
            return np.concatenate([starts, np.full(missing, number, np.int32)]).astype(np.int32)
        return np.concatenate([np.arange(missing, dtype=np.int32), starts + missing]).astype(np.int32)

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """A batch as the model reads it: tokens, labels, loss_mask, position_ids [b, s], document_starts as `padded`
        has it; and, where padding is behind, lengths [b] (multiples of `multiple`), by which micro-batches are cut.

        Labels are those of the next token here: MindSpeed-LLM leaves out the last prediction and the first label
        instead. Padding that nothing looks back at needs no mask.
        """
        padded = self.padded(samples)
        tokens = padded["input_ids"]
        following = np.full_like(tokens, IGNORED)
        following[:, :-1] = padded["labels"][:, 1:]
        counts = following != IGNORED
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        batch = {
            "tokens": tokens,
            "labels": np.where(counts, following, 0).astype(np.int32),
            "loss_mask": counts.astype(np.float32),
            "position_ids": np.ascontiguousarray(positions),
        }
        if not self.left:
            numbers = np.array([len(sample["input_ids"]) for sample in samples], np.int32)
            batch["lengths"] = -(-np.maximum(numbers, 1) // self.multiple) * self.multiple
        if "document_starts" in padded:
            batch["document_starts"] = padded["document_starts"]
            if self.resets_positions:
                batch["position_ids"] = batch["position_ids"] - padded["document_starts"]
        return batch


class InstructionDataset:
    """Conversations in the order of training as samples of different lengths; `collate` makes batches of them."""

    def __init__(
        self,
        conversations: Conversations,
        order: Array,
        rules: SampleRules,
        collator: Collator,
        samples_per_epoch: int,
    ) -> None:
        """order: the number of the conversation of each sample. samples_per_epoch: samples of one pass."""
        self.conversations, self.order, self.rules = conversations, order, rules
        self.collate_samples, self.samples_per_epoch = collator, samples_per_epoch

    def __len__(self) -> int:
        """The number of samples: whole passes over the data."""
        return len(self.order)

    def __getitem__(self, number: int) -> Sample:
        """Sample `number` in the order of training, not padded."""
        return sampled(self.conversations[int(self.order[number])], self.rules)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """A batch of samples, as training reads it (`Collator.__call__`)."""
        return self.collate_samples(samples)
