"""Real launch scripts whose every option is implemented train, shrunk to a laptop with every switch kept."""

from collections.abc import Sequence

import pytest

from tests.support.distributed import run
from tests.support.public_scripts import check_steps, scripts, train_script, with_files

SIXTEEN_BITS = scripts("shrunk")
DENSE = scripts("shrunk_dense")
"""Shrunk dense scripts, most of them trained by `-m exhaustive` or `python -m tests.support.public_scripts
shrunk_dense` only."""

EVERY_FLAG = ("s0025", "s0059", "s0424", "s0525", "s0675", "s0795", "s0918", "s0930", "s0944", "s1185")
"""Ids of scripts of SIXTEEN_BITS that together have each flag, each word behind one and each layout that any of
SIXTEEN_BITS has."""

WITH_TOKENIZERS = scripts("shrunk_tokenizers")
"""Shrunk scripts with MindSpore's adapters, packed conversations, text by a HuggingFace tokenizer, or
Llama2Tokenizer."""

OF_THEIR_OWN = ("s0105", "s0212", "s0568", "s0907", "s0937", "s0962", "s1146", "s1242")
"""Ids of scripts of DENSE with flags that no other script trained here has: recomputation, overlap, a ring, layers by
cost, instances."""


def test_so_many_are_drawn():
    """Counts of distinct scripts in the tables: 20 in SIXTEEN_BITS, 40 in DENSE."""
    assert [len({script["id"] for script in drawn}) for drawn in (SIXTEEN_BITS, DENSE)] == [20, 40]


def train(script, folder) -> None:
    check_steps(script["argv"], run(script["nproc"], train_script, script["argv"], folder))


def of(words: Sequence[str]) -> set[tuple[str, str]]:
    """The flags of a command line, each with a word behind it unless that is a number or a path."""
    found, flag = set(), ""
    for word in words:
        flag = word if word.startswith("--") else flag
        is_value = word is flag or word.replace(".", "").replace("e-", "").replace("-", "").isdigit() or "/" in word
        found.add((flag, "" if is_value else word))
    return found


def test_each_flag_is_trained_with():
    """EVERY_FLAG's scripts have every flag and word that any script of SIXTEEN_BITS has, so leaving the others out
    loses none."""
    every = {(script["id"], one) for script in SIXTEEN_BITS for one in of(script["argv"])}
    chosen = {one for name, one in every if name in EVERY_FLAG}
    assert {one for _, one in every} == chosen


@pytest.mark.parametrize("name", EVERY_FLAG)
def test_a_script_in_16_bits_trains_two_steps(name, tmp_path):
    """Each script of EVERY_FLAG trains two steps: one loss on all ranks, near a uniform guess, and new weights."""
    (script,) = (script for script in SIXTEEN_BITS if script["id"] == name)
    train(script, tmp_path)


OTHERS = [script for script in SIXTEEN_BITS if script["id"] not in EVERY_FLAG]
OTHERS += [script for script in DENSE if script["id"] not in OF_THEIR_OWN]


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", OTHERS, ids=[script["id"] for script in OTHERS])
def test_every_script_trains_two_steps(script, tmp_path):
    """Scripts of both tables that EVERY_FLAG and OF_THEIR_OWN leave out train two steps, with the same checks."""
    train(script, tmp_path)


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_a_dense_script_trains_two_steps(name, tmp_path):
    """Each script of OF_THEIR_OWN trains two steps: one loss on all ranks, near a uniform guess, and new weights."""
    (script,) = (script for script in DENSE if script["id"] == name)
    train(script, tmp_path)


@pytest.mark.parametrize("script", WITH_TOKENIZERS, ids=[script["id"] for script in WITH_TOKENIZERS])
def test_a_script_with_its_kind_of_tokenizer_and_tuning_trains_two_steps(script, tmp_path):
    """Its two losses are near those of a guess among 3000 ids, about the size of all these tokenizers' vocabularies."""
    argv = with_files(script["argv"])
    check_steps(argv, run(script["nproc"], train_script, argv, tmp_path), ids=3000)
