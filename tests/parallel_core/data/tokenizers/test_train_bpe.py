"""Learning merges: against the definition, and files that the tokenizer reads."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.data.tokenizers import GPT2BPETokenizer
from parallel_core.data.tokenizers.train_bpe import learn_merges, main, merge_pair


def merges_by_recounting(words: list[str], number: int) -> list[tuple[str, str]]:
    """The definition: count all pairs anew before each merge."""
    tokens, merges = [list(word) for word in words], []
    for _ in range(number):
        counts = Counter(pair for word in tokens for pair in pairwise(word))
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        if best is None or counts[best] < 2:
            break
        merges.append(best)
        tokens = [merge_pair(word, best) for word in tokens]
    return merges


@given(words=st.lists(st.text(alphabet="abc", min_size=1, max_size=12), max_size=12), number=st.integers(0, 10))
def test_incremental_counts_equal_counting_anew(words, number):
    text = "\n".join(words)
    spaced = [word for word in "\n".join(words).replace("\n", " \n ").split(" ") if word]
    assert learn_merges([text], number) == merges_by_recounting([w.replace("\n", "Ċ") for w in spaced], number)


def test_overlapping_pairs_are_merged_from_the_left():
    assert merge_pair(list("aaaaa"), ("a", "a")) == ["aa", "aa", "a"]


def test_files_are_read_by_the_tokenizer(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("low lower lowest low low newest\n" * 3)
    main(["--input", str(text), "--vocab-size", "265", "--output-dir", str(tmp_path / "v")])
    assert capsys.readouterr().out.startswith("265 entries")
    tokenizer = GPT2BPETokenizer(tmp_path / "v" / "vocab.json", tmp_path / "v" / "merges.txt")
    assert tokenizer.vocab_size == 265 and tokenizer.eod == 264
    assert len(tokenizer.tokenize(" low")) == 1


def test_too_small_a_vocabulary_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--input", "x", "--vocab-size", "256", "--output-dir", str(tmp_path)])
    assert stopped.value.code == 2 and "at least 257" in capsys.readouterr().err
