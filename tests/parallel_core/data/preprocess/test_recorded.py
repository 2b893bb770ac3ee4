"""Recorded runs of Megatron's `tools/preprocess_data.py` (core_v0.16.1): its flags, unchanged, write the same bytes
here."""

import json
import pickle

import pytest

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.preprocess.command_line import main
from parallel_core.data.tokenizers import build_tokenizer
from tests.support.assets import asset
from tests.support.instruction import hashed_files, inputs
from tests.support.tokenizer_records import options, unpack

RECORDED = json.loads(asset("preprocess.json").read_bytes())
CASES = RECORDED["cases"]
GOOD = [name for name, case in CASES.items() if "error" not in case]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("folders"))


@pytest.fixture
def flags(folders, tmp_path):
    """A function from a case's name to its flags with existing paths; output goes to the empty folder `out`, and only
    one case uses two processes."""
    (tmp_path / "out").mkdir()
    (tmp_path / "numbers.jsonl").write_text("\n".join(map(json.dumps, RECORDED["numbers.jsonl"])) + "\n")

    def of(name: str) -> list[str]:
        given = "\n".join(CASES[name]["flags"]).replace("<input>/numbers", f"{tmp_path}/numbers")
        for place, path in {"input": inputs() / "input", "tokenizers": folders, "out": tmp_path / "out"}.items():
            given = given.replace(f"<{place}>", str(path))
        return (given if name == "hf_qwen2_workers2" else given.replace("--workers\n2", "--workers\n1")).split("\n")

    return of


@pytest.mark.parametrize("name", GOOD)
def test_the_files_are_those_that_megatron_wrote(flags, tmp_path, name):
    """Each good case writes Megatron's bytes; with two keys it writes, besides, the index that 0.16.1 leaves out."""
    assert main(flags(name)) == 0
    made = hashed_files(tmp_path / "out")
    assert {file: made[file] for file in CASES[name]["files"]} == CASES[name]["files"]
    # With --json-keys title text 0.16.1 writes the index of only the last key; this project writes one for each key.
    assert set(made) - set(CASES[name]["files"]) == ({"data_title_document.idx"} if name == "two_keys" else set())
    if name == "two_keys":
        titles = IndexedDataset(tmp_path / "out" / "data_title_document")
        assert titles.document_indices.tolist() == list(range(31)) and titles.sequence_lengths.sum() == 462


def test_a_missing_key_is_said_where_megatron_ends_well_with_half_a_file(flags, tmp_path, capsys):
    """A record without the key is an error with its line, and leaves no file, where Megatron writes half a file with
    exit code 0."""
    with pytest.raises(SystemExit) as stopped:
        main(flags("missing_key"))
    assert stopped.value.code == 2 and not list((tmp_path / "out").iterdir())
    assert "pretrain.jsonl, line 1: has no key 'body'; there are 'title', 'text', 'meta'" in capsys.readouterr().err


@pytest.mark.parametrize("name", GOOD)
def test_every_tokenizer_goes_to_worker_processes_and_takes_many_texts_at_once(flags, name):
    """Each case's tokenizer survives pickling, and `tokenize_batch` of the copy equals tokenizing one text after
    another."""
    given = flags(name)
    first, last = given.index("--tokenizer-type"), given.index("--workers")
    tokenizer = build_tokenizer(options([flag for flag in given[first:last] if flag != "--append-eod"]))
    texts = ["7 8", "9"] if name == "null" else ["", "a text", "<s> 好的 \n"]
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.tokenize_batch(texts) == [tokenizer.tokenize(text) for text in texts]


@pytest.mark.parametrize("name", [name for name in GOOD if name != "null"])
def test_half_a_surrogate_pair_is_named_by_its_line(flags, tmp_path, name, capsys):
    """A text with half a surrogate pair is an error with its line, for each tokenizer."""
    (tmp_path / "in.jsonl").write_text('{"title": "a", "text": "good"}\n{"title": "a", "text": "\\ud83d"}\n')
    given = flags(name)
    given[given.index("--input") + 1] = str(tmp_path / "in.jsonl")
    with pytest.raises(SystemExit):
        main([flag.replace("2", "1") if flag == "2" else flag for flag in given])
    assert "in.jsonl, line 2: is no JSON text" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())
