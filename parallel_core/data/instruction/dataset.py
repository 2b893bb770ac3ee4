"""The training data of `--is-instruction-dataset`."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.data.instruction.collate import Batch, Collator
from parallel_core.data.instruction.samples import Conversations, Sample, SampleRules, sampled
from parallel_core.numerics.dtypes import Array


class InstructionDataset:
    """Conversations in the order of training; `collate` makes batches of them."""

    def __init__(
        self,
        conversations: Conversations,
        order: Array,
        rules: SampleRules,
        collator: Collator,
        samples_per_epoch: int,
    ) -> None:
        """order: the conversation of each sample."""
        self.conversations, self.order, self.rules = conversations, order, rules
        self.collate_samples, self.samples_per_epoch = collator, samples_per_epoch

    def __len__(self) -> int:
        """Whole passes over the data."""
        return len(self.order)

    def __getitem__(self, number: int) -> Sample:
        """A sample, not filled up."""
        return sampled(self.conversations[int(self.order[number])], self.rules)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """A batch of samples, as training reads it."""
        return self.collate_samples(samples)
