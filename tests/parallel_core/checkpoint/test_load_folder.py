"""--load and --lora-load: the folder is checked before anything is started."""

from pathlib import Path

import pytest

from mapping.reading import read
from tests.support.checkpoint_writing import one_tensor, save
from tests.support.mapping.lines import line


def told(flags: str) -> list[str]:
    """The errors at a start with `flags` behind a correct command line."""
    return read([*line(), "--mock-data", *flags.split()], world_size=1, check_files=True).errors


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a checkpoint of iteration 4 in `saved`, and one with something else in `other`."""
    save(tmp_path / "saved", 4, [one_tensor(1)])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    return tmp_path


MISSING = {
    "--load {}/none": "--load {}/none: there is no such folder; give",
    "--load {}/other/notes.txt": "--load {}/other/notes.txt: there is no such folder",
    "--load {}/other": "--load {}/other: there is no latest_checkpointed_iteration.txt",
    "--load {}/saved --ckpt-step 5": "--load {}/saved: --ckpt-step 5: {}/saved has no checkpoint of this iteration",
    "--load {}/none --exit-on-missing-checkpoint --save {}/none --save-interval 1": "--load {}/none: there is no such",
    "--load {}/other --resume-training --save {}/other --save-interval 1": "--load {}/other: there is no latest",
    "--load {}/none --use-checkpoint-args": "--load {}/none: there is no such folder",
    "--lora-target-modules linear_qkv --lora-load {}/none": "--lora-load {}/none: there is no such folder",
}


@pytest.mark.parametrize("flags", MISSING)
def test_what_is_not_there_is_said_once(folder, flags):
    """A folder to load that does not exist or has no such checkpoint is one error, with flag, path, cause and fix."""
    (error,) = told(flags.replace("{}", str(folder)))
    assert error.startswith(MISSING[flags].replace("{}", str(folder))) and "; " in error


@pytest.mark.parametrize(
    "flags",
    [
        "--load {}/saved",
        "--load {}/saved/iter_0000004",
        "--load {}/none --save {}/none --save-interval 1",
        "--load {}/other --save {}/other --save-interval 1",
        "--lora-load {}/none",
    ],
)
def test_what_is_there_or_need_not_be(folder, flags):
    """An existing checkpoint is accepted, and so is a --load without one that --save names too, which may be a first
    start."""
    assert told(flags.replace("{}", str(folder))) == []
