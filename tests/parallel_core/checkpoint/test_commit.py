"""A save that dies anywhere loses nothing; a save that succeeds leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.checkpoint.writer import file_name, write_manifest
from tests.support.checkpoint_writing import one_tensor, run_at, save, whole, write_stages


class Crash(BaseException):
    """The process is gone."""


def _value(root: Path) -> float:
    """What the latest checkpoint holds, all of its bytes checked."""
    reader = CheckpointReader(commit.find(root))
    assert reader.damaged_files(digests=True) == []
    spec, _ = one_tensor(0)["w"]
    values = whole(reader, spec)
    assert (values == values.flat[0]).all()
    return float(values.flat[0])


STEPS = [
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "open"),
    (Path, "write_text"),
    (Path, "unlink"),
    (os, "fsync"),
    (os, "replace"),
    (shutil, "rmtree"),
]
"""Every call by which a save changes the disk."""


def _crash_at(monkeypatch, count: int) -> list[int]:
    """The process dies just before its `count`-th change of the disk; the returned list counts them."""
    seen = [0]

    def dying(original):
        def call(*args, **kwargs):
            seen[0] += 1
            if seen[0] == count:
                raise Crash
            return original(*args, **kwargs)

        return call

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))
    return seen


def _changes(monkeypatch, root: Path, iteration: int) -> int:
    with monkeypatch.context() as patch:
        seen = _crash_at(patch, 0)
        save(root, iteration, [one_tensor(2)], tensor_size=2, keep=1)
    return seen[0]


@pytest.mark.parametrize("iteration", [2, 1], ids=["new iteration", "iteration that exists"])
def test_a_crash_at_any_step_leaves_a_whole_checkpoint(tmp_path, monkeypatch, iteration):
    """The latest is the old one or the new one, cleaning up keeps it, and the next save succeeds."""
    save(tmp_path / "dry", 1, [one_tensor(1)])
    steps = _changes(monkeypatch, tmp_path / "dry", iteration)
    assert steps > 15
    seen = set()
    for count in range(1, steps + 1):
        root = tmp_path / str(count)
        save(root, 1, [one_tensor(1)])
        with monkeypatch.context() as patch:
            _crash_at(patch, count)
            with pytest.raises(Crash):
                save(root, iteration, [one_tensor(2)], tensor_size=2, keep=1)
        left = _value(root)
        seen.add(left)
        commit.clean(root)
        assert _value(root) == left
        save(root, 3, [one_tensor(3)], keep=1)
        assert _value(root) == 3
        assert sorted(path.name for path in root.iterdir()) == ["iter_0000003", commit.TRACKER]
    assert seen == {1.0, 2.0}


WRITER = """
import sys
from pathlib import Path
from tests.support.checkpoint_writing import one_tensor, save
for iteration in range(1, 10**6):
    save(Path(sys.argv[1]), iteration, [one_tensor(iteration)], tensor_size=2, keep=2)
    print(iteration, flush=True)
"""


def test_sigkill_during_saves_leaves_what_the_tracker_names(tmp_path):
    """A writer that saves without pause is killed at random moments; what it reported as saved is never lost."""
    pause = np.random.default_rng(0)
    for _ in range(5):
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
    """Also when an earlier run left higher iterations behind."""
    save(tmp_path, 100, [one_tensor(100)])
    for iteration in (1, 2, 3):
        save(tmp_path, iteration, [one_tensor(iteration)], keep=2)
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000002", "iter_0000003"]
    assert _value(tmp_path) == 3


def test_saving_an_iteration_again_replaces_it(tmp_path):
    """Nothing of the old directory stays, also not a file that the new layout has no use for."""
    save(tmp_path, 1, [one_tensor(1)], tensor_size=2)
    save(tmp_path, 1, [one_tensor(2)], tensor_size=1)
    assert sorted(p.name for p in (tmp_path / "iter_0000001").iterdir()) == [
        "manifest.json",
        "mp_rank_00_000.safetensors",
    ]
    assert _value(tmp_path) == 2


def test_other_files_in_the_save_directory_stay(tmp_path):
    """Logs, metrics, hidden files of others."""
    for name in ("metrics.jsonl", ".hidden", "iter_best"):
        (tmp_path / name).write_text("mine")
    for iteration in (1, 2):
        save(tmp_path, iteration, [one_tensor(1)], keep=1)
    assert all((tmp_path / name).read_text() == "mine" for name in ("metrics.jsonl", ".hidden", "iter_best"))


def test_a_checkpoint_can_be_named_itself(tmp_path):
    """--load DIR/iter_0000001 takes that one, whatever is the latest."""
    first = save(tmp_path, 1, [one_tensor(1)])
    save(tmp_path, 2, [one_tensor(2)])
    assert commit.find(first) == first and commit.find(tmp_path).name == "iter_0000002"


@pytest.mark.parametrize(
    ("tracker", "words"),
    [(None, "no latest_checkpointed_iteration.txt"), ("seven", "number of an iteration"), ("7", "iter_0000007")],
)
def test_a_directory_without_a_checkpoint_is_named(tmp_path, tracker, words):
    """No tracker, a damaged one, one that names a directory that isn't there."""
    if tracker:
        (tmp_path / commit.TRACKER).write_text(tracker)
    with pytest.raises(ValueError, match=words) as error:
        commit.find(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_writer_that_did_not_come_is_named(tmp_path):
    """Two hosts with a directory each of the same name: rank 0 sees only its own files."""
    partial = commit.begin(tmp_path, 1)
    write_stages(partial, [one_tensor(1)], 2)
    (partial / "mp_rank_01_000.json").unlink()
    with pytest.raises(ValueError, match=r"mp_rank_01_000.safetensors did not arrive.*share"):
        write_manifest(partial, run_at(1), [file_name(0, 0), file_name(1, 0)])


def test_retained_iterations_are_never_removed(tmp_path):
    """--save-retain-interval 4: every fourth stays, of the others the newest."""
    for iteration in (2, 4, 6, 8, 10):
        save(tmp_path, iteration, [one_tensor(1)], keep=1, retain=4)
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000004", "iter_0000008", "iter_0000010"]


def test_an_iteration_can_be_asked_for(tmp_path):
    """--ckpt-step takes that one, whatever is the latest, and names what there is when it is not there."""
    for iteration in (1, 3):
        save(tmp_path, iteration, [one_tensor(1)])
    assert commit.find(tmp_path, 1).name == "iter_0000001"
    with pytest.raises(ValueError, match=r"--ckpt-step 2: .*there are 1, 3"):
        commit.find(tmp_path, 2)
