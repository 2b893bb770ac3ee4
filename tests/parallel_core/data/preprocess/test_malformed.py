"""200 damaged inputs of preprocessing: each ends in a clear error or in whole files, and nothing is half-written."""

import gzip
import json
import random

import pytest
import zstandard

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.preprocess import text
from parallel_core.data.preprocess.text import TextOptions, preprocess_text
from parallel_core.data.tokenizers import build_tokenizer
from tests.support.tokenizer_records import options, unpack

GOOD = [{"text": "one text"}, {"text": ["two", "texts"]}, {"text": "好的 \n"}, {"text": ""}]
WRONG = [b"{", b"[]", b"null", b"1", b'"text"', b'{"text": 1}', b'{"text": {}}', b'{"text": [[]]}', b'{"text": NaN}']
WRONG += [
    b'{"Text": "a"}',
    b'{"text": "\\ud800"}',
    b'{"text": "\\udc00\\ud800"}',
    b'{"text": "\xff"}',
    b"\x00",
    b"[" * 5000,
]
WRONG += [
    b"\xef\xbb\xbf{}",
    b'{"text": "a", }',
    b"{'text': 'a'}",
    b'{"text": "a\nb"}',
    b'{"text": null}',
    b'{"text": true}',
]
PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = unpack(tmp_path_factory.mktemp("folders")) / "hf_qwen2"
    return options(["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(folder)])


def damaged(drawn: random.Random) -> bytes:
    """Good lines of JSON with a wrong one among them, or with up to three bytes replaced and cut at a random place."""
    lines = [json.dumps(line, ensure_ascii=drawn.random() < 0.5).encode() for line in GOOD * drawn.choice((1, 5))]
    if drawn.random() < 0.5:
        lines.insert(drawn.randrange(len(lines)), drawn.choice(WRONG))
        return b"\n".join(lines)
    content = bytearray(b"\n".join(lines))
    for _ in range(drawn.randrange(1, 4)):
        content[drawn.randrange(len(content))] = drawn.randrange(256)
    return bytes(content[: drawn.randrange(1, len(content) + 1)])


@pytest.mark.slow
def test_two_hundred_damaged_inputs(tmp_path, tokenizer, monkeypatch):
    """Damaged lines, packed or not, with and without skipping of bad records: the error names --input and leaves no
    file, or the written data sets agree with the reported counts."""
    built = build_tokenizer(tokenizer)
    monkeypatch.setattr(text, "build_tokenizer", lambda _: built)
    outcomes = {"written": 0, "refused": 0}
    for seed in range(200):
        drawn = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        ending = drawn.choice(list(PACK))
        packed = bytearray(PACK[ending](damaged(drawn)))
        if ending and drawn.random() < 0.3:
            packed[drawn.randrange(len(packed))] ^= 1 << drawn.randrange(8)
        file = folder / f"in.jsonl{ending}"
        file.write_bytes(packed)
        skips = drawn.random() < 0.5
        given = {
            "tokenizer": tokenizer,
            "append_eod": True,
            "skips_bad_records": skips,
            "partitions": drawn.randrange(1, 3),
        }
        try:
            done = preprocess_text(TextOptions(input=str(file), output_prefix=folder / "p", **given))
        except ValueError as error:
            assert str(error).startswith(f"--input {file}"), error
            assert [path.name for path in folder.iterdir()] == [file.name]
            outcomes["refused"] += 1
            continue
        made = IndexedDataset(folder / "p_text_document")
        assert len(made.document_indices) - 1 == done.documents and len(made.tokens) == done.tokens[0]
        assert sorted(path.name for path in folder.iterdir() if path != file) == [
            "p_text_document.bin",
            "p_text_document.idx",
        ]
        outcomes["written"] += 1
    assert min(outcomes.values()) > 40, outcomes
