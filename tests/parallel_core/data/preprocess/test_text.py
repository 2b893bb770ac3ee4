"""Preprocessing of text with the NullTokenizer: written sequences, their order, and the files that stay when a run
fails."""

import gzip
import json

import numpy as np
import pytest

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.preprocess import inputs
from parallel_core.data.preprocess.command_line import main

NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]


def sequences(prefix) -> list[list[int]]:
    dataset = IndexedDataset(prefix)
    return [dataset[i].tolist() for i in range(len(dataset))]


def run(folder, *flags: str, tokenizer=NULL) -> list[list[int]]:
    """Preprocess `in.jsonl` of the folder and give the sequences under the key `text`."""
    assert main(["--input", str(folder / "in.jsonl"), "--output-prefix", str(folder / "p"), *tokenizer, *flags]) == 0
    return sequences(folder / "p_text_document")


def write_lines(folder, texts) -> None:
    (folder / "in.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))


@pytest.mark.parametrize("workers", [1, 2])
def test_json_lines_become_a_sequence_per_document(tmp_path, workers, capsys, monkeypatch):
    """Each key has its data set with a sequence for each text, in order, also from two processes in small blocks; an
    empty text is a document without a sequence."""
    monkeypatch.setattr(inputs, "BLOCK", 10)
    lines = [{"text": "1 2 3", "title": "4"}, {"text": "", "title": "5 6"}, {"text": ["7", "", "8"], "title": "8"}]
    (tmp_path / "in.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    run(tmp_path, "--append-eod", "--json-keys", "text", "title", "--workers", str(workers))
    assert sequences(tmp_path / "p_text_document") == [[1, 2, 3, 100], [7], [8, 100]]
    assert sequences(tmp_path / "p_title_document") == [[4, 100], [5, 6, 100], [8, 100]]
    # An empty text is a document without a sequence, as in Megatron.
    assert IndexedDataset(tmp_path / "p_text_document").document_indices.tolist() == [0, 1, 1, 3]
    said = capsys.readouterr().out
    assert f"3 documents, 7 tokens written: --data-path {tmp_path}/p_text_document" in said and "--split" not in said
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".bin", ".bin", ".idx", ".idx", ".jsonl"]


def test_one_document_comes_with_the_split_that_it_needs(tmp_path, capsys):
    """A single document leaves nothing for validation, which is said with the flag."""
    write_lines(tmp_path, ["1 2"])
    run(tmp_path)
    assert "train on one by --split 100,0,0" in capsys.readouterr().out


def test_without_append_eod_nothing_is_added(tmp_path):
    """A sequence has the text's ids alone without --append-eod."""
    write_lines(tmp_path, ["1 2", "3"])
    assert run(tmp_path) == [[1, 2], [3]]


@pytest.mark.parametrize(("vocab_size", "token_type"), [("60000", np.uint16), ("70000", np.int32)])
def test_token_type_follows_the_vocabulary(tmp_path, vocab_size, token_type):
    """Tokens are uint16 for a vocabulary of 60,000 and int32 for 70,000."""
    write_lines(tmp_path, ["1"])
    run(tmp_path, tokenizer=["--tokenizer-type", "NullTokenizer", "--vocab-size", vocab_size])
    assert IndexedDataset(tmp_path / "p_text_document").dtype == token_type


@pytest.mark.parametrize("block", [1, 20, 1000])
def test_partitions_deal_out_lines_in_turn_or_keep_their_order(tmp_path, block, monkeypatch):
    """--partitions 3 writes every third line together, as Megatron does; with --keep-sequential-samples the order is
    the input's."""
    monkeypatch.setattr(inputs, "BLOCK", block)
    write_lines(tmp_path, map(str, range(8)))
    order = [0, 3, 6, 1, 4, 7, 2, 5]
    assert run(tmp_path, "--partitions", "3") == [[number] for number in order]
    assert run(tmp_path, "--partitions", "3", "--keep-sequential-samples") == [[number] for number in range(8)]


def test_records_that_are_wrong_are_left_out_and_counted_when_told(tmp_path, capsys):
    """--on-bad-record skip leaves out wrong records, and prints their number and each line's reason."""
    lines = ['{"text": "1"}', "{", '{"body": "2"}', '{"text": "x"}', '{"text": "3"}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert run(tmp_path, "--on-bad-record", "skip") == [[1], [3]]
    said = capsys.readouterr().out
    assert "3 records left out" in said and "2 documents, 2 tokens" in said
    for number, reason in {2: "is no JSON", 3: "has no key 'text'", 4: "NullTokenizer takes decimal ids"}.items():
        assert f"in.jsonl, line {number}: {reason}" in said


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ('{"text": "1"}\n{"body": "2"}', [], "in.jsonl, line 2: has no key 'text'"),
        ('{"text": "1"}\n{"text": "x"}', [], "in.jsonl, line 2: NullTokenizer takes decimal ids"),
        ('{"text": ""}', [], "has no text under text: there is nothing to write"),
        ("", [], "has no text under text"),
        ("{", ["--on-bad-record", "skip"], "line 1: is no JSON"),
        ('{"text": "1", "b": ""}', ["--json-keys", "text", "b"], "has no text under b"),
        ('{"text": "1"}', ["--json-keys", "text", "text"], "--json-keys text is given twice"),
        ('{"text": "1"}', ["--workers", "0"], "--workers 0 must be at least 1"),
        ('{"text": "1"}', ["--partitions", "0"], "--partitions 0 must be at least 1"),
        ('{"text": "1"}', ["--split-sentences"], "--split-sentences: sentences are not split; give lists"),
        ('{"text": "1"}', ["--find-optimal-num-workers"], "--find-optimal-num-workers: nothing is tried"),
    ],
)
def test_a_mistake_is_said_and_nothing_is_written(tmp_path, content, flags, message, capsys):
    """A wrong record, input without text, or a wrong flag is an error with exit code 2 and no output file."""
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path, *flags)
    assert stopped.value.code == 2 and message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_older_data_set_stays_when_a_run_fails(tmp_path):
    """The data set of an earlier run stays when a run with the same output fails."""
    write_lines(tmp_path, ["1 2"])
    run(tmp_path)
    (tmp_path / "in.jsonl").write_text("{")
    with pytest.raises(SystemExit):
        run(tmp_path)
    assert sequences(tmp_path / "p_text_document") == [[1, 2]]


def test_packed_files_and_texts_give_what_their_content_gives(tmp_path):
    """A folder with a gzip file of JSON lines and a text file gives their documents in order; the text file is one."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "1 2"}\n{"text": "3"}\n'))
    (tmp_path / "in" / "b.txt").write_text("4\n5")
    assert main(["--input", str(tmp_path / "in"), "--output-prefix", str(tmp_path / "p"), *NULL]) == 0
    assert sequences(tmp_path / "p_text_document") == [[1, 2], [3], [4, 5]]
