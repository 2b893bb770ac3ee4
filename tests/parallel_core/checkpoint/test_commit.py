"""Publishing a checkpoint: a save that dies at any step loses no older checkpoint, and one that succeeds leaves nothing
else behind."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.manifest import MANIFEST, Manifest
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.checkpoint.writer import file_name, write_manifest
from tests.support.checkpoint_writing import one_tensor, run_at, save, whole, write_stages
from tests.support.dying import deaths


def _value(root: Path) -> float:
    """The value that the latest checkpoint's one tensor is filled with; its bytes are checked first."""
    reader = CheckpointReader(commit.find(root))
    assert reader.damaged_files() == []
    spec, _ = one_tensor(0)["w"]
    values = whole(reader, spec)
    assert (values == values.flat[0]).all()
    return float(values.flat[0])


@pytest.mark.slow
@pytest.mark.parametrize("iteration", [2, 1], ids=["new iteration", "iteration that exists"])
def test_a_death_at_any_step_leaves_a_whole_checkpoint(tmp_path, iteration):
    """A process that dies at any file operation of a save leaves the old or the new checkpoint as the latest, whole;
    cleaning up keeps it, and the next save succeeds and removes what was left."""
    roots = map(tmp_path.joinpath, map(str, range(1000)))

    def saved_once() -> Path:
        root = next(roots)
        save(root, 1, [one_tensor(1)])
        return root

    seen = []
    with patch("os.fsync"):
        for _, root in deaths(saved_once, lambda root: save(root, iteration, [one_tensor(2)], 2, keep=1)):
            seen.append(_value(root))
            commit.clean(root)
            assert _value(root) == seen[-1]
            save(root, 3, [one_tensor(3)], keep=1)
            assert _value(root) == 3
            assert sorted(path.name for path in root.iterdir()) == ["iter_0000003", commit.TRACKER]
    assert seen == sorted(seen) and set(seen) == {1.0, 2.0} and len(seen) > 30, "from one step on it is the new one"


def test_all_bytes_are_on_the_disk_before_a_name_says_so(tmp_path):
    """fsync comes before each name: all files and folders of the checkpoint before its rename, the rename before
    latest_checkpointed_iteration.txt is replaced, and that replacement last, so that a power failure loses nothing."""
    synced: set[Path] = set()
    folder, seen = tmp_path / "iter_0000001", []
    fsync, rename, replace = os.fsync, Path.rename, os.replace

    def note(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def named(path: Path, target: Path) -> Path:
        assert {path, *path.rglob("*")} <= synced
        synced.clear()
        seen.append(target)
        return rename(path, target)

    def pointed(path: Path, target: Path) -> None:
        assert {Path(path), tmp_path} <= synced
        synced.clear()
        seen.append(target)
        replace(path, target)

    with patch("os.fsync", note), patch.object(Path, "rename", named), patch("os.replace", pointed):
        partial = commit.begin(tmp_path, 1)
        (partial / "huggingface").mkdir()
        (partial / "huggingface" / "config.json").write_text("{}")
        write_stages(partial, [one_tensor(1)], 1)
        write_manifest(partial, run_at(1), [file_name(0, 0)])
        commit.publish(tmp_path, 1)
    assert seen == [folder, tmp_path / commit.TRACKER] and tmp_path in synced


WRITER = """
import sys
from pathlib import Path
from tests.support.checkpoint_writing import one_tensor, save
for iteration in range(1, 10**6):
    save(Path(sys.argv[1]), iteration, [one_tensor(iteration)], tensor_size=2, keep=2)
    print(iteration, flush=True)
"""


@pytest.mark.slow
def test_sigkill_during_saves_leaves_what_the_tracker_names(tmp_path):
    """A process that saves without pause is killed at random moments: the latest checkpoint is whole, and is the last
    one that it reported as saved or the one after."""
    pause = np.random.default_rng(0)
    for _ in range(3):
        root = tmp_path / f"{_}"
        writer = subprocess.Popen([sys.executable, "-c", WRITER, root], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(pause.uniform(0.0, 0.1))
        writer.send_signal(signal.SIGKILL)
        reported = [1, *map(int, writer.stdout.read().split())][-1]
        writer.wait()
        assert _value(root) in (reported, reported + 1)


def test_the_newest_by_time_are_kept(tmp_path):
    """`keep=2` keeps the two checkpoints published last, and deletes an older one with a higher iteration."""
    save(tmp_path, 100, [one_tensor(100)])
    for iteration in (1, 2, 3):
        save(tmp_path, iteration, [one_tensor(iteration)], keep=2)
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000002", "iter_0000003"]
    assert _value(tmp_path) == 3


def test_the_newest_stays_whatever_the_clock_says(tmp_path):
    """`keep=1` keeps the checkpoint just published, although the older one's manifest has a later time, as after a
    clock that went back or a copy."""
    for iteration in (1, 2):
        manifest = save(tmp_path, iteration, [one_tensor(iteration)], keep=1) / MANIFEST
        later = time.time() + 3600
        os.utime(manifest, (later, later))
    assert [path.name for path in tmp_path.glob("iter_*")] == ["iter_0000002"] and _value(tmp_path) == 2


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("retain", [None, 3])
def test_the_newest_whole_one_is_never_deleted(tmp_path, keep, retain):
    """Checkpoint 1 stays, and is the one that messages name, while 2 and 3 are damaged as they are published (a file is
    cut off); it is deleted once whole ones have followed."""
    save(tmp_path, 1, [one_tensor(1)])
    write = commit._sync_all

    def cut_off(partial: Path) -> None:
        write(partial)
        os.truncate(partial / file_name(0, 0), 50)

    with patch.object(commit, "_sync_all", cut_off):
        for iteration in (2, 3):
            save(tmp_path, iteration, [one_tensor(iteration)], keep=keep, retain=retain)
    assert commit.newest_whole(tmp_path) == tmp_path / "iter_0000001"
    assert "iter_0000001" in commit.another(tmp_path / "iter_0000003")
    for iteration in (4, 5):
        save(tmp_path, iteration, [one_tensor(iteration)], keep=keep, retain=retain)
    left = {int(path.name[5:]) for path in tmp_path.glob("iter_*")}
    assert left == {*range(6 - keep, 6)} | ({3} if retain else set()) and _value(tmp_path) == 5


def test_a_checkpoint_that_cannot_be_deleted_fails_no_save(tmp_path):
    """A save succeeds though the old checkpoint cannot be deleted; the next save removes what is left of it. A link to
    a checkpoint is removed, not its target."""
    mine = save(tmp_path / "mine", 1, [one_tensor(9)])
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "iter_0000001").symlink_to(mine)
    save(tmp_path / "root", 2, [one_tensor(2)], keep=1)
    assert not (tmp_path / "root" / "iter_0000001").exists() and _value(tmp_path / "mine") == 9
    with patch("shutil.rmtree", side_effect=OSError("busy")):
        save(tmp_path / "root", 3, [one_tensor(3)], keep=1)
    assert _value(tmp_path / "root") == 3 and len(list(tmp_path.glob("root/.iter*"))) == 1
    save(tmp_path / "root", 4, [one_tensor(4)], keep=1)
    assert not list(tmp_path.glob("root/.iter*"))


def test_a_checkpoint_that_nothing_points_to_is_found(tmp_path):
    """A folder without latest_checkpointed_iteration.txt, as when the first save died just before writing it, gives its
    newest whole checkpoint, with a message that the file is missing."""
    for iteration in (1, 2):
        save(tmp_path, iteration, [one_tensor(iteration)])
    (tmp_path / commit.TRACKER).unlink()
    assert commit.has_checkpoint(tmp_path) and _value(tmp_path) == 2
    assert "is missing" in str(commit.overlooked(tmp_path))
    (tmp_path / "iter_0000002" / file_name(0, 0)).unlink()
    assert _value(tmp_path) == 1


def test_a_pointer_to_another_than_the_last_is_noticed(tmp_path):
    """`overlooked` says that a later checkpoint exists than latest_checkpointed_iteration.txt names, with its
    --ckpt-step; None if it names the latest, or if a checkpoint itself was given."""
    for iteration in (2, 3):
        save(tmp_path, iteration, [one_tensor(iteration)])
    assert commit.overlooked(tmp_path) is None and commit.overlooked(tmp_path / "iter_0000002") is None
    (tmp_path / commit.TRACKER).write_text("2\n")
    said = commit.overlooked(tmp_path)
    assert said is not None and "names iter_0000002, but iter_0000003 was saved later" in said
    assert "--ckpt-step 3" in said


def test_a_damaged_last_one_is_no_pointer_to_an_earlier_one(tmp_path):
    """`overlooked` says nothing where the file names the checkpoint that was published last and is damaged, or one that
    is gone: none was saved later."""
    for iteration in (2, 3):
        save(tmp_path, iteration, [one_tensor(iteration)])
    (tmp_path / "iter_0000003" / file_name(0, 0)).unlink()
    assert commit.overlooked(tmp_path) is None
    shutil.rmtree(tmp_path / "iter_0000003")
    assert commit.overlooked(tmp_path) is None


def test_saving_an_iteration_again_replaces_it(tmp_path):
    """A second save of an iteration leaves no file of the first, also of tensor-parallel ranks that are no more."""
    save(tmp_path, 1, [one_tensor(1)], tensor_size=2)
    save(tmp_path, 1, [one_tensor(2)], tensor_size=1)
    assert sorted(p.name for p in (tmp_path / "iter_0000001").iterdir()) == [
        "manifest.json",
        "mp_rank_00_000.safetensors",
    ]
    assert _value(tmp_path) == 2


def test_other_files_in_the_save_directory_stay(tmp_path):
    """Files in --save that are no checkpoints of ours (logs, metrics, hidden files, `iter_best`) stay when old
    checkpoints are deleted."""
    for name in ("metrics.jsonl", ".hidden", "iter_best"):
        (tmp_path / name).write_text("mine")
    for iteration in (1, 2):
        save(tmp_path, iteration, [one_tensor(1)], keep=1)
    assert all((tmp_path / name).read_text() == "mine" for name in ("metrics.jsonl", ".hidden", "iter_best"))


def test_a_checkpoint_can_be_named_itself(tmp_path):
    """--load DIR/iter_0000001 loads that checkpoint, --load DIR the latest."""
    first = save(tmp_path, 1, [one_tensor(1)])
    save(tmp_path, 2, [one_tensor(2)])
    assert commit.find(first) == first and commit.find(tmp_path).name == "iter_0000002"


@pytest.mark.parametrize(
    ("tracker", "words"),
    [(None, "no latest_checkpointed_iteration.txt"), ("seven", "number of an iteration"), ("7", "iter_0000007")],
)
def test_a_directory_without_a_checkpoint_is_named(tmp_path, tracker, words):
    """A folder whose latest_checkpointed_iteration.txt is missing, is no number, or names a folder that is not there,
    is an error with the path."""
    if tracker:
        (tmp_path / commit.TRACKER).write_text(tracker)
    with pytest.raises(ValueError, match=words) as error:
        commit.find(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_damaged_tracker_file_is_told_with_the_checkpoint_that_is_there(tmp_path):
    """Beside a damaged latest_checkpointed_iteration.txt the newest whole checkpoint is named, be it iteration 0's."""
    save(tmp_path, 0, [one_tensor(1)])
    (tmp_path / commit.TRACKER).write_text("seven")
    with pytest.raises(ValueError, match=r"looks whole is .*iter_0000000: --load .* --ckpt-step 0"):
        commit.find(tmp_path)


def test_the_folder_around_may_be_one_that_cannot_be_read(tmp_path):
    """A save succeeds where the parent of --save lets the user enter it but not open it for listing."""
    open_, root = os.open, tmp_path / "save"

    def open_others(path, *arguments):
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_(path, *arguments)

    with patch("os.open", open_others):
        save(root, 1, [one_tensor(1)])
    assert commit.find(root).name == "iter_0000001"


def test_a_writer_that_did_not_come_is_named(tmp_path):
    """A rank's file that rank 0 does not see, as when two hosts each have a folder of this name, is an error that names
    it and asks for a shared folder."""
    partial = commit.begin(tmp_path, 1)
    write_stages(partial, [one_tensor(1)], 2)
    (partial / "mp_rank_01_000.json").unlink()
    with pytest.raises(ValueError, match=r"mp_rank_01_000.safetensors did not arrive.*share"):
        write_manifest(partial, run_at(1), [file_name(0, 0), file_name(1, 0)])


@pytest.mark.parametrize("nth", [0, 1])
def test_a_manifest_can_be_written_again_when_a_note_stayed(tmp_path, nth):
    """A note that cannot be deleted (EIO) fails `write_manifest`; the second call gives the manifest that the first one
    wrote, and no note is left."""
    partial = commit.begin(tmp_path, 1)
    write_stages(partial, [one_tensor(1)], 2)
    names = [file_name(0, 0), file_name(1, 0)]
    with patch.object(Path, "unlink", _refusing("unlink", nth)), pytest.raises(OSError):
        write_manifest(partial, run_at(1), names)
    manifest = write_manifest(partial, run_at(1), names)
    assert manifest.tensors == Manifest.read(partial).tensors and set(manifest.files) == set(names)
    assert sorted(path.name for path in partial.iterdir()) == sorted([*names, MANIFEST])


def test_retained_iterations_are_never_removed(tmp_path):
    """--save-retain-interval 4 keeps iterations 4 and 8 beside the newest one."""
    for iteration in (2, 4, 6, 8, 10):
        save(tmp_path, iteration, [one_tensor(1)], keep=1, retain=4)
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000004", "iter_0000008", "iter_0000010"]


def test_an_iteration_can_be_asked_for(tmp_path):
    """--ckpt-step takes that iteration whatever is the latest; one that is not there is an error with those that are,
    also where --load is a checkpoint of another iteration."""
    for iteration in (1, 3):
        save(tmp_path, iteration, [one_tensor(1)])
    assert commit.find(tmp_path, 1).name == "iter_0000001"
    with pytest.raises(ValueError, match=r"--ckpt-step 2: .*there are 1, 3"):
        commit.find(tmp_path, 2)
    with pytest.raises(ValueError, match=r"--ckpt-step 2: .*there are none"):
        commit.find(tmp_path / "nothing", 2)
    itself = tmp_path / "iter_0000003"
    assert commit.find(itself, 3) == commit.find(itself) == itself
    with pytest.raises(ValueError, match=r"--ckpt-step 1: --load .*iter_0000003 is .* of iteration 3 alone"):
        commit.find(itself, 1)


def test_only_a_folder_with_a_whole_checkpoint_is_named_to_go_on_with(tmp_path):
    """The message of a full disk gives the newest whole checkpoint and --load, and neither if the very first save
    failed."""
    error = OSError(errno.ENOSPC, "No space left on device")
    commit.begin(tmp_path, 1)
    first = commit.cannot_write(tmp_path, 8, error)
    assert "no whole checkpoint" in first and "--load" not in first
    whole = save(tmp_path, 1, [one_tensor(1)])
    later = commit.cannot_write(tmp_path, 8, error)
    assert f"the newest whole checkpoint is {whole}" in later and f"--load {tmp_path}" in later


def test_a_clock_that_went_back_does_not_make_an_older_one_the_latest(tmp_path):
    """Checkpoints count as newer in the order of publishing, not by file times: for deletion, for a lost
    latest_checkpointed_iteration.txt, and in messages."""
    for iteration in (1, 2):
        save(tmp_path, iteration, [one_tensor(iteration)])
    tomorrow = (tmp_path / "iter_0000002" / "manifest.json").stat().st_mtime + 86400
    os.utime(tmp_path / "iter_0000002" / "manifest.json", (tomorrow, tomorrow))
    for iteration in (3, 4):
        save(tmp_path, iteration, [one_tensor(iteration)], keep=2)
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000003", "iter_0000004"]
    assert commit.overlooked(tmp_path) is None
    (tmp_path / commit.TRACKER).unlink()
    assert commit.find(tmp_path).name == "iter_0000004"


@pytest.mark.parametrize("retain", [None, 4])
def test_a_run_that_began_again_at_an_older_step(tmp_path, retain):
    """A run that goes on from iteration 2 beside 4, 6 and 8 publishes 3, 4, 5: each is the latest, is not deleted for
    the older run's, and those are deleted first."""
    for iteration in (2, 4, 6, 8):
        save(tmp_path, iteration, [one_tensor(iteration)])
    keep = 2 if retain is None else 1
    left = {None: [{8, 3}, {3, 4}, {4, 5}], 4: [{4, 8, 3}, {4, 8}, {4, 8, 5}]}[retain]
    for iteration, expected in zip((3, 4, 5), left, strict=True):
        save(tmp_path, iteration, [one_tensor(10 * iteration)], keep=keep, retain=retain)
        assert commit.find(tmp_path).name == commit.checkpoint_name(iteration) and commit.overlooked(tmp_path) is None
        assert _value(tmp_path) == 10 * iteration
        assert {int(path.name[-7:]) for path in tmp_path.glob("iter_*")} == expected


@pytest.mark.parametrize("retain", [None, 5])
def test_what_another_run_has_saved_is_not_deleted(tmp_path, retain):
    """`keep` counts and deletes the run's own checkpoints alone; those of another run id, and those whose manifest
    cannot be read, stay."""
    for iteration in (1, 2):
        save(tmp_path, iteration, [one_tensor(iteration)], run_id="another")
    save(tmp_path, 3, [one_tensor(3)])
    (tmp_path / "iter_0000003" / MANIFEST).write_text("{")
    for iteration in (4, 6, 8):
        save(tmp_path, iteration, [one_tensor(iteration)], keep=1, retain=retain)
    left = [int(path.name[5:]) for path in sorted(tmp_path.glob("iter_*"))]
    assert left == [1, 2, 3, 8] and _value(tmp_path) == 8


def test_what_another_run_has_saved_is_not_replaced(tmp_path):
    """A save of an iteration that another run has saved moves that checkpoint, whole, to `earlier_1`; the run's own is
    replaced."""
    save(tmp_path, 1, [one_tensor(1)], run_id="another")
    for value in (2, 3):
        save(tmp_path, 1, [one_tensor(value)])
    assert _value(tmp_path) == 3 and sorted(path.name for path in tmp_path.glob("earlier_*/*")) == ["iter_0000001"]
    reader = CheckpointReader(tmp_path / "earlier_1" / "iter_0000001")
    assert reader.damaged_files() == [] and reader.manifest.run_id == "another"


def test_publishing_can_be_tried_again_at_any_step(tmp_path):
    """A failure (EIO) of each call of `publish`, in turn, lets a second `publish` succeed and leave no hidden files."""
    for name in ("rename", "_sync", "replacing", "_sync_all"):
        root = tmp_path / name
        save(root, 1, [one_tensor(1)])
        partial = commit.begin(root, 1)
        write_stages(partial, [one_tensor(2)], 1)
        write_manifest(partial, run_at(1), [file_name(0, 0)])
        for nth in range(4):
            with patch.object(Path if name == "rename" else commit, name, _refusing(name, nth)), suppress(OSError):
                commit.publish(root, 1)
        commit.publish(root, 1)
        assert _value(root) == 2 and [path.name for path in root.glob(".*")] == []


def test_what_another_job_has_removed_is_not_published(tmp_path):
    """`publish` of a folder that is gone raises, and the file that names the latest stays as it was."""
    save(tmp_path, 1, [one_tensor(1)])
    commit.clean(tmp_path)
    with pytest.raises(FileNotFoundError, match="another job has taken the folder"):
        commit.publish(tmp_path, 2)
    assert (tmp_path / commit.TRACKER).read_text() == "1\n"


def _refusing(name: str, nth: int):
    """The function `name` of `commit` or, if it has none, of Path, whose call number `nth`, from 0, raises EIO."""
    original, calls = getattr(commit, name, None) or getattr(Path, name), iter(range(100))

    def refuse(*arguments, **named):
        if next(calls) == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(*arguments, **named)

    return refuse
