"""The table of tokenizers, and the one for data that is ids already."""

import pytest

from parallel_core.data.tokenizers import NullTokenizer, build_tokenizer


def test_null_tokenizer_adds_one_id_for_the_end_of_document():
    tokenizer = build_tokenizer("NullTokenizer", vocab_size=100)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.pad) == (101, 100, None)
    assert tokenizer.tokenize(" 3 99\n0 ") == [3, 99, 0]
    assert tokenizer.detokenize([3, 99, 0]) == "3 99 0"
    assert tokenizer.vocab["7"] == 7 and tokenizer.inv_vocab[100] == "100"


@pytest.mark.parametrize(("text", "message"), [("a b", "takes decimal ids"), ("101", "id 101 is outside")])
def test_null_tokenizer_refuses_what_is_no_id(text, message):
    with pytest.raises(ValueError, match=message):
        NullTokenizer(100).tokenize(text)


def test_unknown_type_names_those_there_are():
    with pytest.raises(
        ValueError, match="--tokenizer-type Bert is not available; choose one of GPT2BPETokenizer, Null"
    ):
        build_tokenizer("Bert")


@pytest.mark.parametrize(
    ("kind", "given", "missing"),
    [
        ("GPT2BPETokenizer", {}, "needs --vocab-file and --merge-file"),
        ("GPT2BPETokenizer", {"vocab_file": "v"}, "needs --merge-file"),
        ("NullTokenizer", {}, "needs --vocab-size"),
    ],
)
def test_missing_option_is_named(kind, given, missing):
    with pytest.raises(ValueError, match=f"--tokenizer-type {kind} {missing}"):
        build_tokenizer(kind, **given)
