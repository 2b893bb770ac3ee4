"""`python -m mapping tokenize`: ids and texts of lines, --info about a vocabulary, errors by file and line."""

import json
import subprocess
import sys

import pytest

from parallel_core.data.tokenizers import library as libraries
from parallel_core.data.tokenizers.tokenize import main
from tests.support.assets import ROOT
from tests.support.tokenizer_records import records, unpack


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("tokenizers"))


def refusal(capsys, *arguments) -> str:
    """The error line of a command line that is refused."""
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, arguments)])
    assert stopped.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[0]


@pytest.mark.slow
def test_the_command_prints_a_line_for_each(folders, tmp_path):
    """The command, in a process of its own, prints the recorded ids and decoded text of each line."""
    texts, record = records()["texts"], records()["cases"]["hf_llama.mindspeed"]["encode"]
    agreeing = {name for name, one in records()["cases"]["hf_llama.legacy"]["encode"].items() if one == record[name]}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": texts[name]}) + "\n" for name in agreeing))
    command = ["-m", "mapping", "tokenize", "--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path"]
    command = [sys.executable, *command, folders / "hf_llama", tmp_path / "in.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    wanted = [{"ids": record[name]["ids"], "text": record[name].get("detokenized", texts[name])} for name in agreeing]
    assert [json.loads(line) for line in done.stdout.splitlines()] == wanted and len(wanted) > 60


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(tmp_path):
    """A closed pipe, as by `| head`, ends the command with exit code 0 and no message."""
    (tmp_path / "in.jsonl").write_text('{"text": "1"}\n' * 10_000)
    command = [sys.executable, "-m", "mapping", "tokenize", "--tokenizer-type", "NullTokenizer", "--vocab-size", "9"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, tmp_path / "in.jsonl"], cwd=ROOT, **pipes) as running:
        running.stdout.readline()
        running.stdout.close()
        assert (running.stderr.read(), running.wait()) == (b"", 0)


def test_the_file_may_stand_behind_a_list(folders, tmp_path, capsys):
    """The file of lines is recognised behind a flag that takes a list of values."""
    (tmp_path / "in.jsonl").write_text('{"text": "hello"}')
    record = records()["cases"]["tiktoken_a.core_specials"]
    flags = [flag.replace("{T}", f"{folders}/tiktoken_a") for flag in record["flags"]]
    main([*flags, str(tmp_path / "in.jsonl")])
    assert json.loads(capsys.readouterr().out) == {"ids": record["encode"]["word"]["ids"], "text": "hello"}


def test_facts_need_no_package(folders, capsys, monkeypatch):
    """--info prints size, padded size and special ids without the tokenizer's package; encoding asks for it with the
    pip command."""
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    flags = ["--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", f"{folders}/sp_llama/tokenizer.model"]
    main([*flags, "--info", "--tensor-model-parallel-size", "8"])
    said = json.loads(capsys.readouterr().out)
    assert (said["vocab_size"], said["padded_vocab_size"], said["eod"], said["bos"]) == (3000, 3072, 2, 1)
    assert "sentencepiece, not installed; pip install -e '.[tokenizers]'" in refusal(capsys, *flags, ROOT / "README.md")


@pytest.mark.parametrize(
    "line",
    ['{"text": 1}', '{"body": "x"}', "[1]", '"text"', "{", "null", "\xff", "[" * 100_000, '{"text": "a\\ud83d b"}'],
)
def test_a_bad_line_is_named(folders, line, tmp_path, capsys):
    """A line that is no JSON object with a text is an error with file and line."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line.encode("latin-1") + b"\n")
    said = refusal(capsys, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folders / "hf_qwen2", path)
    assert f"{path}, line 3: " in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("x.jsonl", "--tokenizer-type: must be given; choose one of"),
        ("--tokenizer-type NullTokenizer --vocab-size 9", "FILE.jsonl: must be given, or --info"),
        ("--tokenizer-type NullTokenizer --vocab-size 9 no/file", "no/file: cannot be read"),
        ("--tokenizer-type NullTokenizer --info", "needs --vocab-size"),
        ("--tokenizer-type PretrainedFromHF --tokenizer-name-or-path Qwen/Qwen3-8B --info", "nothing is fetched"),
        ("--patch-tokenizer-type Qwen2Tokenizer --load no/folder --info", "--tokenizer-model no/folder: is no folder"),
    ],
)
def test_flags_that_say_too_little(flags, words, capsys):
    """A missing tokenizer type, file or size, or an unreadable file, is one error line with the flag."""
    assert words in refusal(capsys, *flags.split())


def test_code_of_a_folder_runs_only_if_it_is_trusted(tmp_path, capsys, monkeypatch):
    """A folder with tokenizer code is refused as without tokenizer.json unless trust_remote_code is given; then
    transformers, which would run the code, is asked for."""
    (tmp_path / "tokenization_mine.py").write_text("raise SystemExit('ran')")
    flags = ["--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path", tmp_path, "--info"]
    assert "has no tokenizer.json" in refusal(capsys, *flags)
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    for trust in (["--tokenizer-kwargs", "trust_remote_code", "True"], ["--trust-remote-code"]):
        assert "package transformers, not installed; pip install transformers" in refusal(capsys, *flags, *trust)
