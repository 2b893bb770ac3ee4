"""--save: reasons against saving in a folder are reported before anything is started, with flag and fix."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from mapping.reading import read
from parallel_core.checkpoint import commit
from parallel_core.checkpoint.folders import output_of
from parallel_core.checkpoint.manifest import MANIFEST
from parallel_core.config.checkpoint import CheckpointConfig
from tests.support.checkpoint_writing import one_tensor, save
from tests.support.engine import TINY
from tests.support.locks import hold


def told(flags: str, world_size: int = 1) -> list[str]:
    """All errors of TINY's command line with `flags`, files looked at as training does."""
    return read([*TINY.split(), *flags.split()], world_size=world_size, check_files=True).errors


@pytest.fixture
def used(tmp_path) -> Path:
    """A folder in which a run has saved iterations 4 and 8, beside a folder `other` with a checkpoint."""
    for iteration in (4, 8):
        save(tmp_path / "save", iteration, [one_tensor(1)])
    save(tmp_path / "other", 1, [one_tensor(1)])
    return tmp_path / "save"


RULE = "has iteration 8 of an earlier run, and this run"
WORDS = f"{RULE} begins anew; give"
REFUSED = {
    "": f"{WORDS} --load SAVE to go on, another directory, or --overwrite-save",
    "--load ELSEWHERE": f"{RULE} loads ELSEWHERE; give --load SAVE to go on, another directory",
    "--load SAVE/earlier_1": f"{RULE} loads SAVE/earlier_1; give --load SAVE to go on, another directory",
    "--load SAVE --finetune": f"{WORDS} no --finetune to go on, another directory, or --overwrite-save",
}
ACCEPTED = (
    "--load SAVE",
    "--load SAVE/iter_0000004",
    "--load LINK",
    "--overwrite-save",
    "--load SAVE --finetune --overwrite-save",
    "--skip-train --eval-iters 1",
)


@pytest.mark.parametrize("flags", REFUSED)
def test_a_run_that_begins_anew_is_refused_where_another_has_saved(used, flags):
    """A run that begins anew in a folder with checkpoints is one error with the flags that go on, move the older ones
    away (`earlier_*`) or choose another folder."""
    save(used / "earlier_1", 2, [one_tensor(1)])
    expected, placed = (
        words.replace("SAVE", str(used)).replace("ELSEWHERE", str(used.parent / "other"))
        for words in (f"--save SAVE: {REFUSED[flags]}", flags)
    )
    (finding,) = told(f"--save {used} --save-interval 1 {placed}")
    assert finding.startswith(expected) and ("earlier_*" in finding), finding


@pytest.mark.parametrize("flags", ACCEPTED)
def test_what_goes_on_or_says_that_it_begins(used, flags):
    """A run that loads from the folder, also by a link, or that has --overwrite-save, may save into it."""
    (used.parent / "link").symlink_to(used)
    placed = flags.replace("SAVE", str(used)).replace("LINK", str(used.parent / "link"))
    assert told(f"--save {used} --save-interval 1 {placed}") == []


def test_a_checkpoint_is_found_inside_from_within(used, monkeypatch):
    """A run that is started in a checkpoint's folder and loads it as "." goes on in the folder above."""
    monkeypatch.chdir(used / "iter_0000004")
    assert told("--save .. --save-interval 1 --load .") == []


def test_other_tools_checkpoints_count(tmp_path):
    """A folder with checkpoints of Megatron-LM, or with a converted model (`release`), counts as used."""
    (tmp_path / "iter_0000100" / "mp_rank_00").mkdir(parents=True)
    assert "has iteration 100 of" in told(f"--save {tmp_path} --save-interval 1")[0]
    (tmp_path / "iter_0000100").rename(tmp_path / "release")
    (tmp_path / commit.TRACKER).write_text("release")
    assert f"has {commit.TRACKER} of" in told(f"--save {tmp_path} --save-interval 1")[0]


@pytest.mark.parametrize("contents", ["nothing", "figures", "half a checkpoint"])
def test_a_folder_without_a_checkpoint_is_free(tmp_path, contents):
    """An empty folder, one with metrics, or one with an unfinished save may be saved into by a new run."""
    if contents == "figures":
        (tmp_path / commit.METRICS).write_text("{}\n")
    elif contents == "half a checkpoint":
        commit.begin(tmp_path, 3)
    assert told(f"--save {tmp_path} --save-interval 1") == []


def test_all_is_said_together(used):
    """The error about --save comes with all other errors, and names the keys of the user's YAML where the folder was
    given there."""
    both = told(f"--save {used} --save-interval 1 --num-attention-heads 5 --load-checkpoint nowhere")
    assert len(both) >= 3 and sum(WORDS in line for line in both) == 1
    for further, ways in (
        ("", "training_config.load_checkpoint"),
        (f"  load_checkpoint: {used}\n  resume_training: False\n", "resume_training"),
    ):
        text = f"training_config:\n  output_dir: {used}\n  save_interval: 1\n{further}"
        (used.parent / "run.yaml").write_text(text)
        (finding,) = told(f"--yaml-cfg {used.parent / 'run.yaml'}")
        assert finding.startswith(f"training_config.output_dir {used}: has iteration 8"), finding
        assert ways in finding.partition("; give ")[2].split()[0], finding


def test_where_nothing_can_be_written(tmp_path):
    """A --save below a file, or in a folder without permission to write, is an error with that path and no traceback;
    nothing is created."""
    (tmp_path / "file").write_text("")
    (line,) = told(f"--save {tmp_path / 'file' / 'save'} --save-interval 1")
    assert line == (
        f"--save {tmp_path / 'file' / 'save'}: {tmp_path / 'file'} is no directory; choose another directory"
    )
    with patch("os.access", lambda path, mode: Path(path) != tmp_path):
        (line,) = told(f"--save {tmp_path / 'new' / 'save'} --save-interval 1")
    assert f"{tmp_path} cannot be written to; choose another directory" in line
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_is_no_folder_of_checkpoints(used):
    """A --save that is itself a checkpoint is refused: checkpoints inside of it would never be found."""
    (line,) = told(f"--save {used / 'iter_0000008'} --load {used / 'iter_0000008'} --save-interval 1")
    assert "is a checkpoint itself" in line and (used / "iter_0000008" / MANIFEST).exists()


@pytest.mark.slow
def test_a_job_that_writes_there_is_named(used, monkeypatch):
    """A folder that another job holds is refused on rank 0 with process, host, job and lock file, and without the
    advice to go on there; other ranks are silent, and a killed job blocks nothing."""
    other = hold(used, SLURM_JOB_ID="12")
    try:
        for flags in ("", f"--load {used}", "--overwrite-save"):
            (line,) = told(f"--save {used} --save-interval 1 {flags}")
            assert f"is in use: process {other.pid} on {os.uname().nodename} (SLURM_JOB_ID 12, since 2" in line
            assert f"remove {used / '.lock'}" in line
        monkeypatch.setenv("RANK_ID", "1")
        assert told(f"--save {used} --load {used} --save-interval 1") == []
    finally:
        other.kill()
        other.wait()
    monkeypatch.delenv("RANK_ID")
    assert told(f"--save {used} --load {used} --save-interval 1") == []


def test_the_figures_of_a_run_without_save(tmp_path, monkeypatch):
    """They are in `output`; where another run has saved there, in the next folder, unless this run loads from there."""
    monkeypatch.chdir(tmp_path)
    assert output_of(CheckpointConfig()) == Path("output")
    save(tmp_path / "output", 4, [one_tensor(1)])
    save(tmp_path / "output_2", 4, [one_tensor(1)])
    (tmp_path / "output_3").mkdir()
    (tmp_path / "output_3" / commit.METRICS).write_text("{}\n")
    assert output_of(CheckpointConfig()) == Path("output_3")
    assert output_of(CheckpointConfig(load_checkpoint="output")) == Path("output")
    assert output_of(CheckpointConfig(output_dir="mine")) == Path("mine")
