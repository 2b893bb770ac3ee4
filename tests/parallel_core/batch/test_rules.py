"""Rules about batches, in numpy alone: an error names key, value and place, and a correct batch gives none."""

import re
from dataclasses import replace

import numpy as np
import pytest

from parallel_core.batch.micro_batches import BatchEntry, ContextShard, StepBatch, filled_up
from parallel_core.batch.rules import BatchRules
from parallel_core.context import RING, ContextLayout
from tests.support.engine import TINY, config_of

RULES = BatchRules.of(config_of(f"{TINY} --seq-length 8 --max-position-embeddings 16", 1))
"""Rules for micro-batches of two rows of 8 tokens, 64 ids and 16 positions."""
VARYING = replace(RULES, lengths_vary=True)


def batch(rows: int = 4, length: int = 8, **others) -> dict:
    """Arrays of a batch without a mistake, of `rows` x `length`; `others` replace or add entries by name."""
    tokens = np.arange(rows * length, dtype=np.int32).reshape(rows, length) % 64
    mask = np.ones((rows, length), np.float32)
    mask[1:2] = 0
    positions = np.broadcast_to(np.arange(length, dtype=np.int64), (rows, length))
    attention = np.broadcast_to(~np.tri(length, dtype=bool), (rows, 1, length, length))
    arrays = {"tokens": tokens, "labels": tokens, "loss_mask": mask, "position_ids": positions}
    starts = positions // 3 * 3
    return {**arrays, "attention_mask": attention, "document_starts": starts, **others}


def mistakes(rules: BatchRules, arrays: dict, *more: int) -> list[str]:
    """The messages of `rules` about these arrays; `more` is the number of micro-batches, then of shards that a script
    cut sequences into."""
    entries = {name: BatchEntry.of(name, x) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
    return rules.mistakes(entries, *more)


def changed(name: str, place: tuple, value) -> np.ndarray:
    """A copy of the good batch's entry `name` with `value` at `place`."""
    array = batch()[name].copy()
    array[place] = value
    return array


def attention(shape: tuple, kind: type = bool) -> np.ndarray:
    return np.zeros(shape, kind)


class Tensor:
    """Stands in for torch.Tensor, which a batch may not hold: only its module and name are looked at."""


Tensor.__module__, Tensor.__qualname__ = "torch", "Tensor"

MISTAKES = {
    "an id beyond": ({"tokens": changed("tokens", (2, 3), 64)}, r"tokens\[2, 3\] is 64: .* 0 to 63, .*padded-vocab"),
    "an id below": ({"tokens": changed("tokens", (3, 7), -1)}, r"tokens\[3, 7\] is -1: must be an id from 0 to 63"),
    "a label": ({"labels": changed("labels", (0, 5), 5000)}, r"labels\[0, 5\] is 5000: .*loss_mask of 0"),
    "no label": ({"labels": changed("labels", (0, 5), -100)}, r"labels\[0, 5\] is -100"),
    "a position": ({"position_ids": changed("position_ids", (1, 1), 16)}, r"position_ids\[1, 1\] is 16: .* 0 to 15"),
    "no number": ({"loss_mask": changed("loss_mask", (1, 2), np.nan)}, r"loss_mask\[1, 2\] is nan: .* from 0 on"),
    "an infinite mask": ({"loss_mask": changed("loss_mask", (0, 0), np.inf)}, r"loss_mask\[0, 0\] is inf"),
    "a negative mask": ({"loss_mask": changed("loss_mask", (0, 1), -1)}, r"loss_mask\[0, 1\] is -1"),
    "float ids": ({"tokens": batch()["tokens"].astype(np.float32)}, "tokens is float32: must be int32 or int64"),
    "small ids": ({"labels": batch()["labels"].astype(np.uint8)}, "labels is uint8: must be int32 or int64"),
    "a mask of numbers": ({"attention_mask": attention((4, 1, 8, 8), np.uint8)}, "attention_mask is uint8: .* bool"),
    "no start of a document": (
        {"document_starts": changed("document_starts", (2, 4), 1)},
        r".*starts\[2, 4\] is 1: .*",
    ),
    "an end": ({"document_starts": batch()["document_starts"] + 2}, r"document_starts\[0, 0\] is 2: must be its doc.*"),
    "starts of floats": ({"document_starts": np.zeros((4, 8))}, "document_starts is float64: must be int32"),
    "starts too long": ({"document_starts": np.zeros((4, 9), int)}, r"document_starts has shape \[4, 9\], must have"),
    "rows": (batch(8), "tokens has 8 rows, 4 are due: 2 x --micro-batch-size 2, .* own part"),
    "rows of another entry": ({"images": np.zeros((3, 2))}, "images has 3 rows, 4 are due"),
    "length": (batch(length=10), r"tokens has shape \[4, 10\], must have \[4, 8\]: --seq-length is 8"),
    "lengths": ({"labels": batch(length=7)["labels"]}, r"labels has shape \[4, 7\], must have \[4, 8\]"),
    "one sequence": ({"tokens": np.zeros(4, np.int32)}, r"tokens has shape \[4\], must have \[4, 8\]"),
    "a padding mask": ({"attention_mask": attention((4, 8))}, r"attention_mask has shape .* \[4, 1, 8, 8\]"),
    "one mask for all": ({"attention_mask": attention((1, 1, 8, 8))}, "attention_mask has 1 rows, 4 are due"),
    "a list": ({"tokens": [[1, 2], [3, 4]]}, "tokens is a list: must be a numpy array or a MindSpore tensor"),
    "torch": ({"labels": Tensor()}, "labels is a torch.Tensor: must be a numpy array"),
    "torch elsewhere": ({"images": Tensor()}, "images is a torch.Tensor"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    """Each mistake of `MISTAKES` in a batch of two micro-batches that is otherwise right is one message with key, value
    and place."""
    wrong, message = MISTAKES[name]
    found = mistakes(RULES, {**batch(), **wrong}, 2)
    assert re.match(message, found[0]) and len(found) == len(wrong), found


def test_all_mistakes_are_named_at_once():
    """Mistakes in tokens, labels and loss mask are all reported by one call, in the order of the batch's keys."""
    wrong = {"tokens": changed("tokens", (0, 0), 99), "labels": batch(length=7)["labels"], "loss_mask": [1.0]}
    assert [mistake.split("[")[0].split()[0] for mistake in mistakes(RULES, batch(**wrong), 2)] == list(wrong)


def test_what_is_right():
    """No mistake: optional entries None, missing or unknown; a loss mask of bool, int or float; labels of any value
    where the loss mask is 0; int64 tokens in any memory order."""
    assert mistakes(RULES, batch(note="text", attention_mask=None, scores=np.ones((4, 3))), 2) == []
    for kind in (bool, np.int64, np.float64):
        assert mistakes(RULES, batch(loss_mask=batch()["loss_mask"].astype(kind)), 2) == []
    assert mistakes(RULES, batch(labels=changed("labels", (1, 4), -100)), 2) == []
    assert mistakes(RULES, {"tokens": batch()["tokens"][::-1, ::-1].astype(np.int64)}, 2) == []


def test_lengths_that_vary():
    """Rules with lengths that may vary want one common length for all entries of a batch, at most
    --max-position-embeddings."""
    assert mistakes(VARYING, batch(length=5), 2) == mistakes(VARYING, batch(length=16), 2) == []
    (found,) = mistakes(VARYING, batch(length=5, labels=batch()["labels"]), 2)
    assert found.startswith("labels has shape [4, 8], must have [4, 5]: all entries are equally long")
    assert mistakes(VARYING, {"tokens": batch(length=20)["tokens"]}, 2)[0].endswith("--max-position-embeddings 16")
    assert mistakes(VARYING, {"loss_mask": np.ones((4, 0), np.float32)}, 2) == []


def test_shards_of_sequences():
    """Entries that `ContextShard` cut are checked in the whole sequence, the other ranks' parts included; arrays of a
    shard's length are accepted, and whole sequences given as shards are refused."""
    cut, shard = replace(RULES, context_parallel_size=2), ContextShard(ContextLayout.of(2, RING), 1)
    whole = {name: BatchEntry.of(name, array) for name, array in batch(2).items()}
    own = {name: shard.entry(name, entry) for name, entry in whole.items()}
    unknown = {name: BatchEntry(entry.array) for name, entry in own.items()}
    assert cut.mistakes(own, 1, 2) == cut.mistakes(unknown, 1, 2) == cut.mistakes(whole, 1) == []
    assert len(cut.mistakes(whole, 1, 2)) == 4 and "get_batch_on_this_cp_rank" in cut.mistakes(whole, 1, 2)[0]
    hidden = whole["tokens"].array.copy()
    hidden[0, 0] = 64  # the error is in the other rank's part
    assert cut.mistakes({"tokens": shard.entry("tokens", BatchEntry.of("tokens", hidden))}, 1, 2)[0].startswith(
        "tokens[0, 0]"
    )


def test_of_a_micro_batch_one_attention_mask_may_be_for_all_rows():
    """A batch of one micro-batch may have an attention mask of [1, 1, s, s], which is for all of its rows."""
    assert mistakes(RULES, batch(2, attention_mask=attention((1, 1, 8, 8))), 1) == []


def test_ids_of_a_batch_that_a_script_will_cut():
    """`wrong_ids` looks at ids alone, in a batch of any shape: labels of -100 and those where the loss mask is 0 are
    passed over, an id beyond the vocabulary is named by its place."""
    tokens = np.arange(9, dtype=np.int64)[None]
    ignored = np.array([[1, -100, 70]])
    drawn = {
        "tokens": BatchEntry(tokens),
        "labels": BatchEntry(ignored),
        "loss_mask": BatchEntry(np.array([[1, 1, 0]])),
    }
    assert RULES.wrong_ids(drawn) == RULES.wrong_ids({"tokens": BatchEntry(tokens * 1.5), "labels": None}) == []
    (found,) = RULES.wrong_ids({"tokens": BatchEntry(tokens * 10), "labels": BatchEntry(ignored[:, :2])})
    assert found.startswith("tokens[0, 7] is 70")


def test_a_batch_is_filled_up():
    """`filled_up` adds rows with a loss mask of 0 up to the wanted number, with and without a given loss mask; a batch
    of no rows is filled, too, and the counts of tokens stay."""
    for rows in (0, 3):
        arrays = batch(rows, labels=batch(rows)["labels"] + 1)
        entries = {name: BatchEntry.of(name, array) for name, array in arrays.items() if name != "loss_mask"}
        for given in (entries, entries | {"loss_mask": BatchEntry.of("loss_mask", arrays["loss_mask"])}):
            full = filled_up(given, 4)
            assert RULES.mistakes(full, 2) == []
            counts = full["loss_mask"]
            assert counts.tokens == (arrays["loss_mask"].sum() if "loss_mask" in given else rows * 8)
            assert not counts.array[rows:].any() and full["labels"].tokens == rows * 8
            np.testing.assert_array_equal(full["labels"].array[:rows], arrays["labels"])
    assert filled_up(entries, 3) == entries


def test_a_mask_of_one_row_is_that_of_all_rows():
    """`filled_up` leaves an attention mask of one row beside entries with more; where it stands alone, as in the middle
    of a pipeline, each new row has its row, so that none sees later tokens."""
    shared = BatchEntry.of("attention_mask", batch(1)["attention_mask"])
    entries = {name: BatchEntry.of(name, array) for name, array in batch(2).items()} | {"attention_mask": shared}
    assert filled_up(entries, 2) == entries and RULES.mistakes(entries) == []
    assert filled_up(entries, 4)["attention_mask"] is shared
    alone = filled_up({"attention_mask": shared}, 2)["attention_mask"].array
    np.testing.assert_array_equal(alone, batch(2)["attention_mask"])


def test_lengths_are_an_array_or_none():
    """Lengths as a list are a mistake; None cuts no micro-batch."""
    (found,) = mistakes(RULES, batch(2, lengths=[8, 8]), 1)
    assert found.startswith("lengths is a list: must be a numpy array")
    given = {"tokens": BatchEntry.of("tokens", batch(2)["tokens"]), "lengths": None}
    made = StepBatch(given, 1, ContextShard(ContextLayout(), 0)).micro_batch(0)
    assert RULES.mistakes(given) == [] and made["tokens"].array.shape == (2, 8)


def test_none_is_no_loss_mask():
    """A batch that is filled up and has None for its loss mask gets a mask of 0 in the new rows."""
    entries = {"labels": BatchEntry.of("labels", batch(1)["labels"]), "loss_mask": None}
    assert filled_up(entries, 2)["loss_mask"].array.tolist() == [[1] * 8, [0] * 8]
