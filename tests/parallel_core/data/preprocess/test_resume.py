"""Preprocessing that is stopped: which files stay, and how the next run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from parallel_core.data.indexed_dataset import IndexedDataset, bin_path, idx_path
from parallel_core.data.preprocess import inputs, text, unfinished
from parallel_core.data.preprocess.text import TextOptions, preprocess_text
from parallel_core.data.preprocess.unfinished import Unfinished
from parallel_core.data.tokenizers import TokenizerOptions
from parallel_core.system.files import ReplacingFile
from parallel_core.system.processes import start_time
from tests.support.assets import ROOT

NULL = TokenizerOptions("NullTokenizer", vocab_size=1000)


class Stop(BaseException):
    """Ends a run as a kill does: no handler saves its progress."""


def job(folder: Path, **more) -> TextOptions:
    """Options of a run over 50 lines with two keys in `folder`, changed by `more`."""
    (folder / "in.jsonl").exists() or (folder / "in.jsonl").write_text(
        "".join(json.dumps({"text": f"{number} {number}", "more": str(number)}) + "\n" for number in range(50))
    )
    given = {"json_keys": ("text", "more"), "append_eod": True, **more}
    return TextOptions(input=str(folder / "in.jsonl"), output_prefix=folder / "p", tokenizer=NULL, **given)


def data_sets(folder: Path) -> list[bytes]:
    """The bytes of .bin and .idx of both keys."""
    prefixes = [folder / f"p_{key}_document" for key in ("text", "more")]
    return [path(prefix).read_bytes() for prefix in prefixes for path in (bin_path, idx_path)]


@pytest.fixture
def whole(tmp_path, monkeypatch) -> list[bytes]:
    """The bytes of the data sets of a run in small blocks that nothing stops."""
    monkeypatch.setattr(inputs, "BLOCK", 100)
    (tmp_path / "whole").mkdir()
    preprocess_text(job(tmp_path / "whole"))
    return data_sets(tmp_path / "whole")


def stop_after(monkeypatch, number: int, error: type[BaseException], saved_every: float = 0) -> None:
    """Raise `error` in place of adding the block after `number` blocks; progress is saved every `saved_every`
    seconds."""
    add, calls = Unfinished.add, []

    def counted(self, *given):
        calls.append(0)
        if len(calls) > number:
            raise error
        add(self, *given)

    monkeypatch.setattr(Unfinished, "add", counted)
    monkeypatch.setattr(unfinished, "_SAVED_EVERY", saved_every)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(("error", "saved_every"), [(Stop, 0), (KeyboardInterrupt, 1e9)])
@pytest.mark.parametrize("after", [1, 10])
def test_a_stopped_run_goes_on_to_the_same_files(
    tmp_path, monkeypatch, whole, capsys, error, saved_every, after, partitions
):
    """A run that was killed or interrupted after 1 or 10 blocks has no data set; the next run goes on from its last
    saved block and writes the whole run's bytes."""
    if partitions > 1:
        preprocess_text(job(tmp_path / "whole", partitions=partitions))
        whole = data_sets(tmp_path / "whole")
    with monkeypatch.context() as patched:
        stop_after(patched, after, error, saved_every)
        with pytest.raises(error):
            preprocess_text(job(tmp_path, partitions=partitions))
    assert not list(tmp_path.glob("p_*"))
    read = []
    with monkeypatch.context() as patched:
        patched.setattr(text, "blocks", lambda files, start: read.append(start) or inputs.blocks(files, start))
        preprocess_text(job(tmp_path, partitions=partitions))
    assert read[0].offset > 0
    assert data_sets(tmp_path) == whole
    assert f"going on behind {read[0].lines} documents" in capsys.readouterr().err
    assert not list(tmp_path.glob(".p*"))


@pytest.mark.parametrize("calls", range(4))
def test_a_run_that_is_stopped_while_names_are_given_goes_on(tmp_path, monkeypatch, whole, calls):
    """A run killed between the renames of its four finished files completes them in the next run."""
    renamed = []
    replaces = os.replace

    def stopping(source, target):
        if Path(target).name.startswith("p_"):
            renamed.append(target)
            if len(renamed) > calls:
                raise Stop
        replaces(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stopping)
        with pytest.raises(Stop):
            preprocess_text(job(tmp_path))
    preprocess_text(job(tmp_path))
    assert data_sets(tmp_path) == whole and not list(tmp_path.glob(".p*"))


def test_what_was_written_behind_the_last_save_is_cut_off(tmp_path, monkeypatch, whole):
    """Bytes written after the last saved progress are cut off by the next run."""
    with monkeypatch.context() as patched:
        stop_after(patched, 6, Stop)
        with pytest.raises(Stop):
            preprocess_text(job(tmp_path))
    for path in (tmp_path / ".p.unfinished").glob("*.bin"):
        with path.open("ab") as file:
            file.write(b"half of a")
    preprocess_text(job(tmp_path))
    assert data_sets(tmp_path) == whole


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"append_eod": False}, "--append-eod"),
        ({"partitions": 2}, "--partitions"),
        ({"json_keys": ("text",)}, "--json-keys"),
        ({"tokenizer": TokenizerOptions("NullTokenizer", vocab_size=2000)}, "tokenizer flags"),
        ({}, "--input"),
    ],
)
def test_other_flags_or_input_are_refused_unless_begun_anew(tmp_path, monkeypatch, change, named):
    """A resumed run with other flags, or with a changed input, is an error that names them; --restart begins anew."""
    with monkeypatch.context() as patched:
        patched.setattr(inputs, "BLOCK", 100)
        stop_after(patched, 4, Stop)
        with pytest.raises(Stop):
            preprocess_text(job(tmp_path))
    if not change:
        (tmp_path / "in.jsonl").write_text('{"text": "1", "more": "2"}\n')
    other = replace(job(tmp_path), **change)
    with pytest.raises(ValueError, match=rf"with other {named};.*--restart"):
        preprocess_text(other)
    begun = preprocess_text(replace(other, restart=True))
    assert begun.documents == (50 if change else 1)


def test_records_that_an_earlier_run_left_out_stop_one_that_leaves_none_out(tmp_path, monkeypatch):
    """A run resumed without --on-bad-record skip stops at a record that the stopped run had left out; the other way it
    goes on."""
    monkeypatch.setattr(inputs, "BLOCK", 100)
    job(tmp_path)
    lines = (tmp_path / "in.jsonl").read_text().splitlines()
    (tmp_path / "in.jsonl").write_text("\n".join(["no JSON", *lines]) + "\n")
    skipping = job(tmp_path, skips_bad_records=True)
    with monkeypatch.context() as patched:
        stop_after(patched, 4, Stop)
        with pytest.raises(Stop):
            preprocess_text(skipping)
    with pytest.raises(ValueError, match=r"line 1: is no JSON.*--on-bad-record skip"):
        preprocess_text(job(tmp_path))
    assert preprocess_text(skipping).documents == 50


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"made_from": [], "progress": {}, "sizes": [], "is_complete": false}']
)
def test_a_manifest_without_its_entries_is_named(tmp_path, content):
    """A manifest.json that is JSON, but no object with its entries, is an error that names it and --restart."""
    (tmp_path / ".p.unfinished").mkdir()
    (tmp_path / ".p.unfinished" / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json: is no manifest .* --restart"):
        preprocess_text(job(tmp_path))


def test_a_named_tokenizer_file_stands_for_its_folder(tmp_path):
    """--tokenizer-model FOLDER/tokenizer.json is stamped with the other files of the folder, which are read as well."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    stamped = [
        unfinished.tokenizer_stamps(TokenizerOptions("HuggingFaceTokenizer", tokenizer_model=str(path)))["tokenizer"]
        for path in (tmp_path, tmp_path / "tokenizer.json")
    ]
    assert stamped[0] == stamped[1] and len(stamped[1]) == 2


def test_two_runs_of_one_output_do_not_meet(tmp_path, monkeypatch):
    """A second run with the same output prefix, while the first is writing, is refused."""
    messages = []

    def second(*_):
        with pytest.raises(ValueError, match="another run is writing it") as error:
            preprocess_text(job(tmp_path))
        messages.append(error)
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(Unfinished, "add", second)
        with pytest.raises(Stop):
            preprocess_text(job(tmp_path))
    assert messages and not list(tmp_path.glob(".p*"))


def test_a_full_disk_is_an_error_that_leaves_no_data_set(tmp_path, monkeypatch, capsys):
    """A disk that is full when files get their names is an error and leaves no data set."""

    def full(self):
        raise OSError(28, "No space left on device")

    job(tmp_path)
    monkeypatch.setattr(ReplacingFile, "publish", full)
    with pytest.raises(OSError, match="No space left"):
        preprocess_text(job(tmp_path))
    assert not list(tmp_path.glob("*_document*"))


KILLED = """
import multiprocessing, os, signal, sys
from parallel_core.data.preprocess import command_line, unfinished

def save(self, save=unfinished.Unfinished.save):
    save(self)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    unfinished._SAVED_EVERY = 0
    unfinished.Unfinished.save = save
    command_line.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_process_is_taken_up(tmp_path):
    """A process with two workers is killed after its first save: the workers end with it, and the next run writes all
    4000 documents."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"{i % 1000} " * 200}) + "\n" for i in range(4000)))
    (tmp_path / "run.py").write_text(KILLED)
    flags = ["--input", str(tmp_path / "in.jsonl"), "--output-prefix", str(tmp_path / "p"), "--workers", "2"]
    command = [sys.executable, str(tmp_path / "run.py"), *flags, "--tokenizer-type", "NullTokenizer"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([*command, "--vocab-size", "1000"], env=environment, stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in killed.stdout.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(start_time(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlives the process that it works for"
        time.sleep(0.02)
    done = json.loads((tmp_path / ".p.unfinished" / "manifest.json").read_text())["progress"]["documents"]
    assert 0 < done < 4000
    options = TextOptions(input=flags[1], output_prefix=tmp_path / "p", tokenizer=NULL)
    assert preprocess_text(options).documents == 4000
    made = IndexedDataset(tmp_path / "p_text_document")
    assert made.sequence_lengths.tolist() == [200] * 4000
    assert made.tokens[::200].tolist() == [number % 1000 for number in range(4000)]
