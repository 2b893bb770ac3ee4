"""Mistral's tekken.json: ids of tokens come behind those of special tokens, no text is encoded as a special token, and
mistakes are named."""

import base64
import json

import pytest

from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer, facts

SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
MERGES = [b"th", b"the", b" the", b"\xc3\xa9", b"zz"]
FIRST = 8
"""Number of special ids; the last two have no name."""


def content(**changes):
    """The content of a small tekken.json, with `changes`; its last merge lies beyond default_vocab_size."""
    tokens = [*(bytes([byte]) for byte in range(256)), *MERGES]
    return {
        "config": {
            "pattern": r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": FIRST + 260,
            "default_num_special_tokens": FIRST,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [{"rank": i, "token_str": token, "is_control": True} for i, token in enumerate(SPECIAL)],
        **changes,
    }


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tekken.json").write_text(json.dumps(content()), encoding="utf-8")
    return tmp_path


def flags(path):
    return TokenizerOptions("MagistralTokenizer", str(path))


def test_ids_come_behind_special_tokens_and_no_text_is_one(folder):
    """Ids equal those worked out by hand: merges by rank, else bytes; a merge beyond the size is not used; special
    tokens are dropped in decoding; a folder and its file give the same."""
    tokenizer = build_tokenizer(flags(folder))
    assert tokenizer.tokenize("the the\u00e9zz") == [FIRST + n for n in (257, 258, 259, 122, 122)]
    assert tokenizer.tokenize("</s>") == [FIRST + byte for byte in b"</s>"]
    assert tokenizer.detokenize([1, FIRST + 257, FIRST + 195, FIRST + 169, 2]) == "the\u00e9"
    assert tokenizer.facts == facts(flags(folder / "tekken.json"))
    known = tokenizer.facts
    assert (known.vocab_size, known.unk, known.bos, known.eos, known.eod, known.pad) == (268, 0, 1, 2, 2, 5)
    assert tokenizer.additional_special_tokens_ids == [3, 4, 6, 7] and tokenizer.vocab["<SPECIAL_7>"] == 7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": {}}, "is no tekken.json"),
        ({"special_tokens": None}, "special_tokens lack <unk> <s> </s> <pad>"),
        ({"vocab": []}, "has 0 tokens"),
        ({"vocab": None}, "is no tekken.json"),
        ({"vocab": [{"rank": 0}] * 260}, "entry 0 must have rank and token_bytes"),
    ],
)
def test_a_damaged_file_is_named(folder, changes, words):
    """A tekken.json without its sections or with wrong entries is an error in words."""
    (folder / "tekken.json").write_text(json.dumps(content(**changes)), encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        build_tokenizer(flags(folder))
