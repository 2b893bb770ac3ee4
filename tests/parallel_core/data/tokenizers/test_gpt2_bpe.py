"""GPT-2's byte-level BPE: texts survive encoding, merges go by rank, and wrong files are refused."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from parallel_core.data.tokenizers import MegatronTokenizer, TokenizerOptions, build_tokenizer
from tests.support.assets import ROOT

VOCABULARY = ROOT / "examples" / "gpt" / "vocab"


def tokenizer(vocab_file: Path, merge_file: Path) -> MegatronTokenizer:
    return build_tokenizer(TokenizerOptions("GPT2BPETokenizer", vocab_file=str(vocab_file), merge_file=str(merge_file)))


@pytest.fixture(scope="module")
def shipped() -> MegatronTokenizer:
    """The tokenizer of the vocabulary in examples/gpt/vocab."""
    return tokenizer(VOCABULARY / "vocab.json", VOCABULARY / "merges.txt")


@given(text=st.text())
def test_any_text_comes_back(shipped, text):
    """Decoding the ids of any text gives the text."""
    assert shipped.detokenize(shipped.tokenize(text)) == text


def test_known_ids_of_the_shipped_vocabulary(shipped):
    """The shipped vocabulary has 4096 entries, end-of-document id 4095, no padding, and whole words of Python as
    tokens."""
    assert shipped.vocab_size == 4096 and shipped.eod == 4095 and shipped.pad is None
    assert [shipped.inv_vocab[i] for i in shipped.tokenize("def self.return")] == ["def", "Ġself", ".", "return"]
    assert shipped.vocab["def"] == shipped.tokenize("def")[0]


def test_end_of_document_is_only_the_id_never_the_text(shipped):
    """The text <|endoftext|> is not encoded as the end-of-document id, which is decoded to that text."""
    assert shipped.eod not in shipped.tokenize("<|endoftext|>")
    assert shipped.detokenize([shipped.eod, *shipped.tokenize("é"), shipped.eod]) == "<|endoftext|>é<|endoftext|>"


def test_part_of_a_character_is_shown_as_unknown(shipped):
    """Ids of a part of a character's bytes are decoded to U+FFFD."""
    ids = [shipped.vocab[symbol] for symbol in ("\u00e4", "\u00b8", "\u0143")]
    assert shipped.detokenize(ids) == "\u4e2d" and shipped.detokenize(ids[:2]) == "\ufffd"


def test_a_word_of_a_hundred_thousand_letters_takes_no_quadratic_time(shipped):
    """A word of 100,000 letters is encoded in less than 5 s of processor time."""
    started = time.process_time()
    shipped.tokenize("abcdefgh" * 12_500)
    assert time.process_time() - started < 5


def test_id_outside_the_vocabulary_is_named(shipped):
    """Decoding an id beyond the vocabulary is an error with the id."""
    with pytest.raises(ValueError, match="token id 4096 is none of the tokenizer's 4096"):
        shipped.detokenize([4096])


def write_files(folder: Path, vocab: object, merges: str) -> tuple[Path, Path]:
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text(merges)
    return folder / "vocab.json", folder / "merges.txt"


WHOLE = {token: i for i, token in enumerate([*pre_tokenizers.ByteLevel.alphabet(), "<|endoftext|>"])}


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        pytest.param({"a": 0}, "", "is not a byte-level vocabulary: it lacks", id="words only"),
        pytest.param(["a"], "", "expected a JSON object of token to id", id="list"),
        pytest.param({"a": "b"}, "", "expected a JSON object of token to id", id="no ids"),
        pytest.param(WHOLE, "a b c\n", r"merge 1 is 'a b c'; expected two tokens", id="merge of three"),
        pytest.param(
            WHOLE, "#version: 0.2\na b\n", "makes 1 tokens that --vocab-file .* lacks, such as 'ab'", id="pair"
        ),
    ],
)
def test_wrong_files_are_named(tmp_path, vocab, merges, message):
    """A vocabulary that lacks bytes or is no object of ids, and merges that are no pairs, are errors."""
    with pytest.raises(ValueError, match=message):
        tokenizer(*write_files(tmp_path, vocab, merges))


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt"])
def test_missing_files_are_named(tmp_path, missing):
    """A vocabulary or merges file that does not exist is an error with its name."""
    files = write_files(tmp_path, WHOLE, "")
    (tmp_path / missing).unlink()
    with pytest.raises(ValueError, match=missing):
        tokenizer(*files)
