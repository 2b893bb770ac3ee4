"""Writing our own format: what a conversion that fails leaves."""

import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.native import write_native
from parallel_core.checkpoint.lock import FolderLock
from tests.support.checkpoint_cases import digests, unpack


def test_what_cannot_be_named_the_latest_is_withdrawn(tmp_path, monkeypatch):
    """If latest_checkpointed_iteration.txt cannot be written, no part of the new checkpoint is left: neither a new
    folder, nor anything beside an earlier checkpoint, nor in place of one of the same iteration."""
    model, ours = formats.read(unpack("hf/llama", tmp_path / "in")), tmp_path / "ours"
    model.position.iteration = 7

    def fails(path):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(commit, "replacing", fails)
        with pytest.raises(OSError, match="no space"):
            write_native(model, ours)
        assert not ours.exists()
    write_native(model, ours)
    monkeypatch.setattr(commit, "replacing", fails)
    for iteration in (7, 8):
        model.position.iteration = iteration
        with pytest.raises(OSError, match="no space"):
            write_native(model, ours)
        assert sorted(path.name for path in ours.iterdir()) == ["iter_0000007", commit.TRACKER]
    assert digests(formats.read(ours).weights) == digests(model.weights)


def test_a_folder_that_another_job_has_made_meanwhile_stays(tmp_path, monkeypatch):
    """A conversion that fails leaves the checkpoint that another job wrote into the same new folder before this one had
    its lock."""
    model, ours, take = formats.read(unpack("hf/llama", tmp_path / "in")), tmp_path / "ours", FolderLock.take

    def late(lock, say):
        monkeypatch.setattr(FolderLock, "take", take)
        write_native(model, ours)
        take(lock, say)

    def refuses(written):
        raise ValueError("no good")

    monkeypatch.setattr(FolderLock, "take", late)
    with pytest.raises(ValueError, match="no good"):
        write_native(model, ours, refuses)
    assert digests(formats.read(ours).weights) == digests(model.weights)
    assert sorted(path.name for path in ours.iterdir()) == ["iter_0000000", commit.TRACKER]
