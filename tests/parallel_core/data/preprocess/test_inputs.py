"""Input files of preprocessing: formats, order, errors by file and line, and reading from the middle."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from parallel_core.data.instruction.records import BadRecord
from parallel_core.data.preprocess import inputs
from parallel_core.data.preprocess.inputs import Position, blocks, input_files, read_documents

LINES = b"".join(json.dumps({"text": f"text {number}", "n": number}).encode() + b"\n" for number in range(100))


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def parquet_of(key: str) -> bytes:
    """The bytes of an unpacked .parquet file of ten texts under `key`."""
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({key: [f"text {number}" for number in range(10)]})
    pyarrow.parquet.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue().to_pybytes()


WRITERS = {
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "b.json": lambda path: path.write_bytes(LINES.rstrip()),
    "c.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES[:1000]) + gzip.compress(LINES[1000:])),
    "d.jsonl.zst": lambda path: path.write_bytes(zstandard.compress(LINES[:1000]) + zstandard.compress(LINES[1000:])),
    "e.parquet": lambda path: write_parquet(path, [json.loads(line) for line in LINES.splitlines()]),
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 200 bytes and of 7 parquet rows."""
    monkeypatch.setattr(inputs, "BLOCK", 200)
    monkeypatch.setattr(inputs, "_ROWS", 7)


def texts(found) -> list[str]:
    """The texts of all blocks, in order."""
    return [each["text"][0] for block in found for _, _, each in block.documents(("text",))]


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_is_read_and_taken_up_after_any_block(tmp_path, name, small_blocks):
    """Each format of file is read in order, in several blocks, and reading from the end of any block gives the rest,
    with right line numbers."""
    WRITERS[name](tmp_path / name)
    files = input_files(str(tmp_path / name))
    found = list(blocks(files))
    assert len(found) > 5, "in parts"
    assert texts(found) == [f"text {number}" for number in range(100)]
    assert found[-1].bytes_read == files[0].stat().st_size
    for number, block in enumerate(found):
        assert texts(blocks(files, block.end)) == texts(found[number + 1 :])
        assert next(line for line, _, _ in block.documents(("text",))) == block.start.all_lines == block.start.lines


def test_a_directory_is_read_in_order_without_hidden_files(tmp_path):
    """A folder's files are read by path, subfolders included, hidden files and folders left out; other files than JSON
    are one document each."""
    for name, text in {"b.txt": "2", "a/z.py": "1", ".hidden": "9", ".git/x": "9", "c.jsonl": '{"text": "3"}'}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [document["text"] for document in read_documents(tmp_path)] == [["1"], ["2"], ["3"]]
    found = list(blocks(input_files(str(tmp_path))))
    assert [(block.end.file, block.end.all_lines) for block in found] == [(0, 1), (1, 2), (2, 3)]
    assert texts(blocks(input_files(str(tmp_path)), found[0].end)) == ["2", "3"]


def test_a_pattern_names_files_in_order(tmp_path):
    """A pattern (`p*.jsonl`) names its files in alphabetical order."""
    for name in ("p2.jsonl", "p1.jsonl", "q.jsonl"):
        (tmp_path / name).write_text("{}")
    assert [file.name for file in input_files(str(tmp_path / "p*.jsonl"))] == ["p1.jsonl", "p2.jsonl"]


def test_a_list_is_a_document_of_several_sequences(tmp_path):
    """A list of texts under a key is one document of several sequences; empty lines are passed over."""
    (tmp_path / "a.jsonl").write_text('{"text": ["one", "two"]}\n\n{"text": []}')
    assert list(read_documents(tmp_path / "a.jsonl")) == [{"text": ["one", "two"]}, {"text": []}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": ', "is no JSON text"),
        (b'{"text": "a"} x', "is no JSON text"),
        (b"[1]", "must be a JSON object: is list"),
        (b'{"body": "a"}', "has no key 'text'; there are 'body'"),
        (b"{}", "has no key 'text'; there are none"),
        (b'{"text": 5}', "'text' must be a text or a list of texts, has int"),
        (b'{"text": null}', "has NoneType"),
        (b'{"text": ["a", 1]}', "has int"),
        (b'{"text": "\\ud83d"}', "is no JSON text: .*surrogates"),
        (b'{"text": "\xff"}', "is no JSON text"),
        (b"[" * 100_000, "is no JSON text"),
    ],
)
def test_a_wrong_line_is_named_with_its_file_and_number(tmp_path, line, reason):
    """A line that is no JSON object with the key is a BadRecord with file, line (empty ones counted) and reason."""
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    [(_, _, good), (number, place, wrong)] = next(blocks([tmp_path / "a.jsonl"])).documents(("text",))
    assert good == {"text": ["good"]}
    assert isinstance(wrong, BadRecord) and place == f"{tmp_path / 'a.jsonl'}, line 3" and number == 2
    with pytest.raises(ValueError, match=f"line 3: .*{reason}"):
        list(read_documents(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", gzip.compress(LINES)[:-20], "is damaged"),
        ("a.jsonl.gz", b"no gzip file", "is damaged"),
        ("a.jsonl.zst", b"no zst file", "is damaged"),
        ("a.jsonl.zst", zstandard.compress(LINES)[:-20], "is damaged"),
        ("a.jsonl.zst", zstandard.compress(LINES[:1000]) + zstandard.compress(LINES[1000:])[:3], "is damaged"),
        ("a.parquet", b"no parquet file", "is no parquet file"),
        ("a.parquet", parquet_of("text").replace(b"text 7", b"tex\xff 7"), "is no parquet file"),
        ("a.parquet", parquet_of("text")[:4] + b"\xff" * 20 + parquet_of("text")[24:], "is no parquet file"),
        ("a.txt", b"\xff\xfe", "is no UTF-8 text"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    """A gzip, zstd or parquet file that is damaged or cut off is an error with its name."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        list(read_documents(tmp_path / name))


def test_nothing_to_read_is_said(tmp_path):
    """An --input that does not exist, a pattern that nothing matches, or an empty folder is an error."""
    (tmp_path / "empty").mkdir()
    for name, message in {"nowhere": "does not exist", "x*": "does not exist", "empty": "empty directory"}.items():
        with pytest.raises(ValueError, match=message):
            input_files(str(tmp_path / name))


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    """A zstd or parquet file without its package is an error with the pip command of the extra."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("parallel_core.data.preprocess.opened.import_module", missing)
    for name, extra in {"a.jsonl.zst": "zstd", "a.parquet": "parquet"}.items():
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ValueError, match=rf"pip install -e '\.\[{extra}\]'"):
            list(blocks([tmp_path / name], Position()))
