"""examples/gpt's prepare_data: the corpus is made once, reproducible, split, and refused with status 2 where there is
no text."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.tokenizers import MegatronTokenizer, TokenizerOptions, build_tokenizer
from tests.support.assets import ROOT

SCRIPT = ROOT / "examples" / "gpt" / "prepare_data.py"


@pytest.fixture(scope="module")
def prepare_data():
    spec = importlib.util.spec_from_file_location("prepare_data", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokenizer_of(folder: Path) -> MegatronTokenizer:
    files = {"vocab_file": str(folder / "vocab.json"), "merge_file": str(folder / "merges.txt")}
    return build_tokenizer(TokenizerOptions("GPT2BPETokenizer", **files))


def text_of(prefix: Path, tokenizer: MegatronTokenizer) -> str:
    return tokenizer.detokenize(IndexedDataset(f"{prefix}_text_document").tokens.tolist())


def test_default_corpus_is_the_standard_library(prepare_data, tmp_path):
    """The default corpus is the standard library's source, each document ended by eod, and the same bytes twice."""
    prefix = tmp_path / "stdlib"
    prepare_data.main(["--output-prefix", str(prefix), "--max-megabytes", "0.5"])
    dataset = IndexedDataset(f"{prefix}_text_document")
    assert 50_000 < len(dataset.tokens) < 250_000
    tokenizer = tokenizer_of(prepare_data.VOCABULARY)
    assert all(dataset[i][-1] == tokenizer.eod for i in range(len(dataset)))
    assert "def " in text_of(prefix, tokenizer) and "import " in text_of(prefix, tokenizer)
    prepare_data.main(["--output-prefix", str(tmp_path / "again"), "--max-megabytes", "0.5"])
    for ending in ("_text_document.bin", "_text_document.idx"):
        assert Path(f"{tmp_path}/again{ending}").read_bytes() == Path(f"{prefix}{ending}").read_bytes()


def test_one_file_of_text_is_cut_so_that_it_can_be_split(prepare_data, tmp_path):
    """A corpus of one file is cut into documents enough for --split 969,30,1; together they are the file's text."""
    book = "".join(f"Line {number} of the book.\n" for number in range(40_000))
    (tmp_path / "book.txt").write_text(book)
    prepare_data.main(["--output-prefix", str(tmp_path / "b"), "--corpus", str(tmp_path / "book.txt")])
    documents = len(IndexedDataset(tmp_path / "b_text_document"))
    assert round(0.969 * documents) < round(0.999 * documents) < documents, (
        "--split 969,30,1 gives each split something"
    )
    tokenizer = tokenizer_of(prepare_data.VOCABULARY)
    assert text_of(tmp_path / "b", tokenizer).replace("<|endoftext|>", "") == book


def test_pieces_end_with_a_line_where_there_is_one(prepare_data):
    """`cut_text` cuts behind the last newline within the limit, and at the limit if there is no newline."""
    assert list(prepare_data.cut_text("ab\ncd\nefghijkl", limit=5)) == ["ab\n", "cd\n", "efghi", "jkl"]


def test_made_again_only_when_something_changed(prepare_data, tmp_path, capsys):
    """Token files are kept while nothing changes, and made again after other text or damage to the .bin file."""
    corpus, bin_file = tmp_path / "c.txt", tmp_path / "p_text_document.bin"
    arguments = ["--output-prefix", str(tmp_path / "p"), "--corpus", str(corpus)]

    def run_says_it_is_there() -> bool:
        prepare_data.main(arguments)
        return "is there already" in capsys.readouterr().out

    corpus.write_text("one text")
    assert [run_says_it_is_there() for _ in range(2)] == [False, True]
    corpus.write_text("another text")
    assert not run_says_it_is_there(), "other text"
    bin_file.write_bytes(bin_file.read_bytes()[:-1])
    assert not run_says_it_is_there(), "a damaged file"
    assert run_says_it_is_there()


def test_mistakes_exit_with_status_2(prepare_data, tmp_path, capsys):
    """A corpus that does not exist, an empty folder and a blank file end with status 2 and a message that says so."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text(" \n")
    for name, message in [("nowhere", "error: --corpus"), ("empty", "empty directory"), ("blank.txt", "has no text")]:
        with pytest.raises(SystemExit) as stopped:
            prepare_data.main(["--output-prefix", str(tmp_path / "p"), "--corpus", str(tmp_path / name)])
        assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_runs_from_any_folder_without_mindspore(tmp_path):
    """The script runs in another folder without MindSpore, and its last line names the --data-path to train with."""
    (tmp_path / "c.txt").write_text("text")
    blocked = "import sys, runpy; sys.modules['mindspore'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    command = [sys.executable, "-c", blocked, str(SCRIPT), "--output-prefix", "p", "--corpus", "c.txt"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("train on it with --data-path p_text_document\n")


def test_ctrl_c_is_no_traceback(prepare_data, tmp_path, monkeypatch):
    """Ctrl-C during preprocessing: exit code 130, no traceback, and no file is left."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_data, "preprocess_text", interrupted)
    with pytest.raises(SystemExit) as end:
        prepare_data.main(["--output-prefix", str(tmp_path / "a"), "--max-megabytes", "0.1"])
    assert end.value.code == 130 and end.value.__suppress_context__ and not list(tmp_path.iterdir())


def test_a_folder_with_a_picture_is_refused_with_a_way_out(prepare_data, tmp_path, capsys):
    """A folder with a file that is no UTF-8 text: the error names it and asks for a pattern, with which preparing
    succeeds."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("text\n" * 3000)
    (folder / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(SystemExit):
        prepare_data.main(["--output-prefix", str(tmp_path / "a"), "--corpus", str(folder)])
    assert "a.png: is no UTF-8 text" in (error := capsys.readouterr().err) and "give a pattern" in error
    prepare_data.main(["--output-prefix", str(tmp_path / "a"), "--corpus", str(folder / "*.md")])
    assert len(IndexedDataset(tmp_path / "a_text_document"))
