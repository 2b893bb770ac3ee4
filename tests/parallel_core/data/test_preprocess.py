"""Text to token files: what is read, what is written, what is refused."""

import json

import numpy as np
import pytest

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.preprocess import encode_documents, main, preprocess, read_documents
from tests.support.corpus import null_tokenizer

NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]


def sequences(prefix) -> list[list[int]]:
    dataset = IndexedDataset(prefix)
    return [dataset[i].tolist() for i in range(len(dataset))]


@pytest.mark.parametrize("workers", [1, 2])
def test_json_lines_become_a_sequence_per_document(tmp_path, workers, capsys):
    lines = [{"text": "1 2 3", "title": "4"}, {"text": "", "title": "5 6"}, {"text": "7", "title": "8"}]
    (tmp_path / "in.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    main(
        [
            *("--input", str(tmp_path / "in.jsonl"), "--output-prefix", str(tmp_path / "out" / "p"), "--append-eod"),
            *("--json-keys", "text", "title", "--workers", str(workers)),
            *NULL,
        ]
    )
    assert sequences(tmp_path / "out" / "p_text_document") == [[1, 2, 3, 100], [7, 100]]
    assert sequences(tmp_path / "out" / "p_title_document") == [[4, 100], [5, 6, 100], [8, 100]]
    # An empty text is a document without a sequence, as in Megatron.
    assert IndexedDataset(tmp_path / "out" / "p_text_document").document_indices.tolist() == [0, 1, 1, 2]
    assert f"--data-path {tmp_path}/out/p_text_document" in capsys.readouterr().out


def test_directory_is_read_in_sorted_order_one_document_a_file(tmp_path):
    for name, text in [("b.txt", "2"), ("a/z.py", "1"), (".hidden", "9"), ("c.jsonl", '{"text": "3"}\n{"text": "4"}')]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [document["text"] for document in read_documents(tmp_path)] == ["1", "2", "3", "4"]


def test_reading_does_not_run_far_ahead_of_writing():
    read = 0

    def documents():
        nonlocal read
        for read in range(1, 1001):
            yield {"text": str(read)}

    encoded = encode_documents(documents(), null_tokenizer(2000), append_eod=False, workers=2)
    assert next(encoded) == {"text": [1]} and read <= 100
    assert [document["text"] for document in encoded] == [[number] for number in range(2, 1001)]


def test_without_append_eod_nothing_is_added(tmp_path):
    preprocess([{"text": "1 2"}], tmp_path / "p", null_tokenizer(100), append_eod=False)
    assert sequences(tmp_path / "p_text_document") == [[1, 2]]


@pytest.mark.parametrize(("vocab_size", "token_type"), [(60000, np.uint16), (70000, np.int32)])
def test_token_type_follows_the_vocabulary(tmp_path, vocab_size, token_type):
    preprocess([{"text": "1"}], tmp_path / "p", null_tokenizer(vocab_size))
    assert IndexedDataset(tmp_path / "p_text_document").dtype == token_type


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param('{"text": "1"}\n{"body": "2"}', r"in\.jsonl, line 2: expected a JSON object with text", id="key"),
        pytest.param('{"text": ', r"in\.jsonl, line 1: expected a JSON object", id="cut off"),
        pytest.param("[1]", r"in\.jsonl, line 1: expected a JSON object", id="list"),
        pytest.param('{"text": ""}', "has no text under text", id="empty"),
    ],
)
def test_wrong_input_is_named_and_nothing_is_written(tmp_path, content, message):
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        preprocess(read_documents(tmp_path / "in.jsonl"), tmp_path / "p", null_tokenizer(100))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_missing_input_exits_with_status_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--input", str(tmp_path / "nowhere"), "--output-prefix", str(tmp_path / "p"), *NULL])
    assert stopped.value.code == 2 and "nowhere does not exist" in capsys.readouterr().err
