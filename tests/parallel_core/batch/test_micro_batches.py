"""The batch of a step: cut into micro-batches and into context-parallel shards, and its tokens counted, in numpy."""

import numpy as np
import pytest

from parallel_core.batch.micro_batches import BatchEntry, ContextShard, StepBatch, tokens_ahead
from parallel_core.context import HYBRID, RING, ULYSSES, ContextLayout, as_array

ROWS, LENGTH = 6, 16
WHOLE = ContextShard(ContextLayout(), 0)
LAYOUTS = [ContextLayout.of(2, RING), ContextLayout.of(4, ULYSSES), ContextLayout.of(4, HYBRID, 2)]


def arrays() -> dict[str, np.ndarray]:
    """The arrays of a batch of 6 rows: tokens that are all different, labels, a loss mask with i + 1 ones in row i, a
    random attention mask, and the starts of documents, which are i + 1 long in row i."""
    tokens = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
    loss_mask = (np.arange(LENGTH) < np.arange(1, ROWS + 1)[:, None]).astype(np.float32)
    attention_mask = np.random.default_rng(0).random((ROWS, 1, LENGTH, LENGTH)) < 0.5
    starts = np.arange(LENGTH, dtype=np.int32) // np.arange(1, ROWS + 1)[:, None] * np.arange(1, ROWS + 1)[:, None]
    entries = {"tokens": tokens, "labels": tokens + 1, "loss_mask": loss_mask, "attention_mask": attention_mask}
    return entries | {"document_starts": starts}


def entries(without: str = "") -> dict[str, BatchEntry]:
    """The same arrays as entries of a batch, by name, but for the entry `without`."""
    return {name: BatchEntry.of(name, array) for name, array in arrays().items() if name != without}


def test_micro_batches_are_rows():
    """A micro-batch is a run of the batch's rows in order; a value that is no array goes to each micro-batch, and an
    entry that a stage does not read (`without`) to none."""
    batch = StepBatch({**entries(), "note": "text"}, 3, WHOLE)
    for number in range(3):
        made = batch.micro_batch(number, without={"labels"})
        assert made.pop("note") == "text" and made.keys() == arrays().keys() - {"labels"}
        for name, entry in made.items():
            np.testing.assert_array_equal(entry.array, arrays()[name][2 * number : 2 * number + 2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_read_their_shards(layout):
    """A context-parallel rank gets its own positions of tokens, labels and loss mask; of the attention mask and of the
    document starts the rows of its place in the ring, with all columns and with starts counted in the whole
    sequence."""
    for rank in range(layout.size):
        made = StepBatch(entries(), 2, ContextShard(layout, rank)).micro_batch(1)
        positions = as_array(layout.positions(LENGTH, rank))
        for name in ("tokens", "labels", "loss_mask"):
            np.testing.assert_array_equal(made[name].array, arrays()[name][3:, positions])
        rows = as_array(layout.ring_positions(LENGTH, rank // layout.ulysses))
        np.testing.assert_array_equal(made["attention_mask"].array, arrays()["attention_mask"][3:][:, :, rows])
        np.testing.assert_array_equal(made["document_starts"].array, arrays()["document_starts"][3:, rows])


def test_micro_batches_are_as_long_as_their_longest_rows():
    """An entry `lengths` cuts each micro-batch to its longest row before ranks take their shards; rows of length 0,
    which fill up a batch, count nothing, and the number of tokens with loss does not change."""
    given = entries("attention_mask") | {"lengths": BatchEntry.of("lengths", np.array([4, 8, 12, 4, 0, 0], np.int32))}
    for context in (WHOLE, ContextShard(ContextLayout.of(2, RING), 1)):
        batch = StepBatch(given, 3, context)
        for number, length in enumerate((8, 12, 16)):
            made = batch.micro_batch(number)
            assert made.keys() == given.keys() - {"lengths"}
            whole = made["tokens"].array if context is WHOLE else made["tokens"].whole
            np.testing.assert_array_equal(whole, arrays()["tokens"][2 * number : 2 * number + 2, :length])
            assert made["document_starts"].array.shape == (2, length // context.layout.size)
            assert batch.tokens(number) == arrays()["loss_mask"][2 * number : 2 * number + 2].sum()


def test_a_mask_and_given_experts_are_as_long_as_the_tokens():
    """An entry `lengths` cuts queries and keys of an attention mask and the tokens of given experts, too; entries of
    which nobody knows the axes stay."""
    experts, image = np.arange(ROWS * LENGTH * 6).reshape(ROWS, LENGTH, 3, 2), np.zeros((ROWS, LENGTH, LENGTH))
    more = {"routed_experts": experts, "image": image, "lengths": np.array([4, 8, 12, 4, 0, 0], np.int32)}
    batch = StepBatch(entries() | {name: BatchEntry.of(name, array) for name, array in more.items()}, 3, WHOLE)
    for number, length in enumerate((8, 12, 16)):
        made, rows = batch.micro_batch(number), slice(2 * number, 2 * number + 2)
        mask = arrays()["attention_mask"][rows, :, :length, :length]
        np.testing.assert_array_equal(made["attention_mask"].array, mask)
        np.testing.assert_array_equal(made["routed_experts"].array, experts[rows, :length])
        assert made["image"].array.shape == (2, LENGTH, LENGTH)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shard_is_not_cut_again(layout):
    """A batch whose sequences a script has cut for this rank is cut into micro-batches by rows alone; the counts of
    tokens with loss are still those of whole sequences."""
    shard = ContextShard(layout, layout.size - 1)
    cut = {name: shard.entry(name, entry) for name, entry in entries().items()}
    once, again = StepBatch(entries(), 2, shard), StepBatch(cut, 2, shard)
    for name, entry in once.micro_batch(0).items():
        np.testing.assert_array_equal(again.micro_batch(0)[name].array, entry.array)
        assert entry.whole is not None
        np.testing.assert_array_equal(entry.whole, arrays()[name][:3])
    assert [again.tokens(number) for number in (0, 1)] == [once.tokens(number) for number in (0, 1)] == [6.0, 15.0]


def test_tokens_ahead():
    """`tokens_ahead(tokens, n)` gives each position the token n further on, and 0 beyond the end of its row."""
    np.testing.assert_array_equal(tokens_ahead(np.array([[1, 2, 3], [4, 5, 6]]), 2), [[3, 0, 0], [6, 0, 0]])
    assert not tokens_ahead(np.array([[1, 2, 3]]), 4).any()


def test_what_counts():
    """A micro-batch weighs the sum of its loss mask; without a mask the number of its labels; with neither, or with a
    mask that is a bare array, 1, as every other one."""
    masked, labelled = StepBatch(entries(), 6, WHOLE), StepBatch(entries("loss_mask"), 2, WHOLE)
    assert [masked.tokens(number) for number in range(6)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert labelled.tokens(0) == 3 * LENGTH
    for entry in ({"tokens": entries()["tokens"]}, {"loss_mask": np.ones((2, 2))}):
        assert StepBatch(entry, 2, WHOLE).tokens(0) == 1.0


@pytest.mark.parametrize(("layout", "divisor"), [(LAYOUTS[0], 4), (LAYOUTS[1], 4), (LAYOUTS[2], 8)])
def test_lengths_that_do_not_divide_are_refused(layout, divisor):
    """A sequence length that the context layout cannot cut is an error with the divisor: twice the ring's size for a
    ring, the degree for Ulysses, their product for the hybrid layout."""
    odd = StepBatch({"tokens": BatchEntry.of("tokens", np.zeros((2, 18), int))}, 1, ContextShard(layout, 0))
    with pytest.raises(ValueError, match=f"'tokens' has sequences of 18: must be a multiple of {divisor} with"):
        odd.micro_batch(0)


@pytest.mark.parametrize(("layout", "divisor"), [(LAYOUTS[0], 4), (LAYOUTS[2], 4)])
@pytest.mark.parametrize("name", ["attention_mask", "document_starts"])
def test_queries_that_a_ring_does_not_divide_are_refused(name, layout, divisor):
    """An attention mask or document starts whose length does not form twice as many chunks as a ring has ranks is an
    error with the entry's name and the divisor."""
    array = np.zeros((2, 1, 18, 18) if name == "attention_mask" else (2, 18), bool)
    with pytest.raises(ValueError, match=f"{name!r} has sequences of 18: must be a multiple of {divisor} with"):
        ContextShard(layout, 0).queries(array, name)
