"""Atomic publication of directories.

A checkpoint is written into a hidden directory of the same file system and renamed when every byte is on the disk; then
`latest_checkpointed_iteration.txt` is replaced. A process that dies while it writes leaves the earlier checkpoint the
latest; the next save removes hidden directories that are left, or gives one that is an earlier checkpoint its own name
back.

A run deletes and replaces checkpoints that it has written itself, by the id in the manifest; one of another run that is
in the way is moved.
"""

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

from parallel_core.checkpoint.manifest import MANIFEST, Manifest
from parallel_core.system.files import read_plain, replacing

TRACKER = "latest_checkpointed_iteration.txt"
METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
"""Files that a run keeps in its folder: figures of every step; starts, warnings and the end of a run."""
EARLIER = "earlier"
_PUBLISHED = re.compile(r"iter_\d{7,}")
_TEMPORARY = re.compile(rf"\.({TRACKER}|{METRICS}|lock)\.\w+\.tmp")
_OF_A_RUN = re.compile(rf"iter_\d{{7,}}|release|{TRACKER}|{METRICS}|{EVENTS}")
"""Names of the files and folders that a run, ours or Megatron-LM's, leaves in its folder."""
_HIDDEN = re.compile(r"\.(?P<name>iter_\d{7,})\.(?P<state>partial|replaced|deleted)")


def checkpoint_name(iteration: int) -> str:
    """Name of the directory of an iteration's checkpoint, as Megatron has it."""
    return f"iter_{iteration:07d}"


def _hidden(directory: Path, state: str) -> Path:
    return directory.with_name(f".{directory.name}.{state}")


def partial_directory(root: Path, iteration: int) -> Path:
    """The hidden directory into which an iteration is written before it is published."""
    return _hidden(root / checkpoint_name(iteration), "partial")


def _sync(path: Path) -> None:
    """Bring a file's bytes or a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def begin(root: Path, iteration: int) -> Path:
    """Remove leftovers of interrupted saves in `root` (`clean`), which is made if it is missing, and make the hidden
    directory that the writers of this iteration fill; its path."""
    root.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # the folder above may belong to another user, who lets this one pass but not read
        _sync(root.parent)
    clean(root)
    partial = partial_directory(root, iteration)
    partial.mkdir()
    return partial


def clean(root: Path) -> None:
    """Remove leftovers of interrupted saves and deletions in `root`; a checkpoint that `publish` had given a hidden
    name, and whose replacement never came, gets its own name again."""
    for path in list(root.iterdir()):
        match = _HIDDEN.fullmatch(path.name)
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
        elif not match:
            continue
        elif match["state"] == "replaced" and not (root / match["name"]).exists():
            path.rename(root / match["name"])
        else:
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a folder with all in it, or a link to one: the folder to which it points is not ours."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _sync_all(directory: Path) -> None:
    """Bring a directory and all files in it to the disk."""
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def publish(root: Path, iteration: int) -> Path:
    """Rename the hidden directory of an iteration to the checkpoint's, in place of an earlier one of this iteration,
    and name it the latest; its path. After a failure it can be called again. Raises OSError, also if there is
    neither the hidden directory nor the checkpoint."""
    final = root / checkpoint_name(iteration)
    partial, aside = partial_directory(root, iteration), _hidden(final, "replaced")
    if partial.exists():
        _date(partial / MANIFEST, root)
        _sync_all(partial)
        if final.exists():
            final.rename(aside)
        partial.rename(final)
    elif not final.exists():
        raise FileNotFoundError(f"{partial} is gone: another job has taken the folder meanwhile")
    _sync(root)
    with replacing(root / TRACKER) as file:
        file.write(f"{iteration}\n".encode())
    _sync(root)
    with suppress(OSError):  # The checkpoint is published; the next save deletes the rest.
        if aside.exists():
            _remove(aside)
    return final


def withdraw(root: Path, iteration: int) -> None:
    """Remove what `begin`, and maybe a `publish` that failed, left of an iteration, and put an earlier checkpoint of it
    back. If `publish` has renamed the hidden directory and the tracker file names the iteration, the new checkpoint
    stays."""
    named = None
    with suppress(OSError, ValueError):
        named = int(read_plain(root / TRACKER))
    if not partial_directory(root, iteration).exists() and named != iteration:
        delete(root / checkpoint_name(iteration))
    clean(root)


def _date(manifest: Path, root: Path) -> None:
    """Set a manifest's modification time after those of all checkpoints in `root`: the order of publication is found by
    it, also where the clock went back or counts seconds."""
    latest = max(((path / MANIFEST).stat().st_mtime_ns for path in _published(root)), default=0)
    if manifest.stat().st_mtime_ns <= latest:
        os.utime(manifest, ns=(latest + 10**9,) * 2)


def surplus(root: Path, newest: Path, run_id: str, keep: int, retain: int | None = None) -> list[Path]:
    """The checkpoints of a run that may be deleted: all that it has written but the `keep` (at least 1) that were
    published last, those of iterations that `retain` divides (None: of none), and, of those that are whole, the one
    published last. newest: the checkpoint that counts as published last, whatever the clock said."""
    published = sorted(_published(root), key=lambda path: path == newest)
    own = [path for path in published if is_of(path, run_id)]
    stays = {path for path in own if retain and int(path.name.removeprefix("iter_")) % retain == 0}
    stays.update(own[-keep:])
    if len(stays) < len(own):
        stays.update(list(islice(filter(_is_whole, reversed(own)), 1)))
    return [path for path in own if path not in stays]


def delete(checkpoint: Path) -> None:
    """Delete a checkpoint's directory, or the link that it is; it is renamed first, so that it is no checkpoint any
    more while its files are removed."""
    _remove(checkpoint.rename(_hidden(checkpoint, "deleted")))


def is_of(checkpoint: Path, run_id: str) -> bool:
    """Whether the run with this id has written the checkpoint; False where its manifest cannot be read."""
    with suppress(ValueError):
        return Manifest.read(checkpoint).run_id == run_id
    return False


def is_of_a_run(path: Path) -> bool:
    """Whether a path's name is that of a file or folder that a run leaves in its folder, such as a checkpoint's."""
    return _OF_A_RUN.fullmatch(path.name) is not None


def of_runs(root: Path) -> list[Path]:
    """Paths in `root`, by their names: the tracker file first, then checkpoints, ours or Megatron-LM's, metrics.jsonl
    and events.jsonl in alphabetical order; empty if there is no such folder."""
    found = [path for path in root.iterdir() if is_of_a_run(path)] if root.is_dir() else []
    return sorted(found, key=lambda path: (path.name != TRACKER, path.name))


def make_way(root: Path, iteration: int, run_id: str) -> Path | None:
    """Move the checkpoint of this iteration, unless the manifest says that the run with this id has written it, to a
    new folder in `root` (`set_aside`); that folder, or None if nothing is moved."""
    final = root / checkpoint_name(iteration)
    return None if not final.exists() or is_of(final, run_id) else set_aside(root, [final])


def set_aside(root: Path, paths: Iterable[Path]) -> Path:
    """Move these files and folders, which lie in `root`, into a new folder earlier_N there, N the first free number
    from 1; its path."""
    for number in count(1):
        folder = root / f"{EARLIER}_{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            break
    for path in paths:
        path.rename(folder / path.name)
    _sync(root)
    return folder


def _published(root: Path) -> list[Path]:
    """The checkpoints in `root`, in the order in which they were published."""
    found = [path for path in root.iterdir() if _PUBLISHED.fullmatch(path.name) and (path / MANIFEST).exists()]
    # By time, not by iteration: another run may have left higher iterations in the same directory.
    return sorted(found, key=_order)


def _order(checkpoint: Path) -> tuple[int, str]:
    """The key by which checkpoints are sorted in the order of their publication."""
    return (checkpoint / MANIFEST).stat().st_mtime_ns, checkpoint.name.strip(".").partition(".")[0]


def _is_whole(path: Path) -> bool:
    """Whether a checkpoint's manifest can be read, and its files have their sizes; their bytes are not read."""
    try:
        files = Manifest.read(path).files
        return all((path / name).stat().st_size == record.size for name, record in files.items())
    except (ValueError, OSError):
        return False


def newest_whole(root: Path, besides: Path | None = None) -> Path | None:
    """The checkpoint in `root`, but for `besides`, that was published last of those that look whole; None if there is
    none, or `root` is no folder that can be read."""
    with suppress(OSError):
        return next((path for path in reversed(_published(root)) if path != besides and _is_whole(path)), None)
    return None


def another(directory: Path) -> str:
    """A clause for a user whose checkpoint `directory` is damaged: the newest other one beside it that looks whole, and
    how to load it, or that there is none."""
    other = newest_whole(directory.parent, directory)
    if other is None:
        return f"{directory.parent} holds no other whole checkpoint"
    number = int(other.name.removeprefix("iter_"))
    return f"the newest other checkpoint that looks whole is {other}: --load {other.parent} --ckpt-step {number}"


def overlooked(root: Path) -> str | None:
    """A sentence for a user if the file that names the latest checkpoint in `root` is missing, or names one that was
    published before the last of those that look whole. None otherwise, as where that file is damaged, names one that is
    not there or a damaged one that was published later, where no checkpoint looks whole, or where `root` is a
    checkpoint itself."""
    last = newest_whole(root)
    if (root / MANIFEST).exists() or last is None:
        return None
    if not (root / TRACKER).exists():
        return f"{root / TRACKER} is missing; {last} was saved last and looks whole: it is taken"
    try:
        named = find(root)
    except ValueError:
        return None
    if not (named / MANIFEST).exists() or _order(named) >= _order(last):
        return None
    return f"{root / TRACKER} names {named.name}, but {last.name} was saved later and looks whole: {another(named)}"


def cannot_write(root: Path, needed: int, error: OSError) -> str:
    """A sentence for a user whose checkpoint, of which this rank writes `needed` bytes, could not be written into
    `root`: the error, those bytes and the free ones in MiB, the newest checkpoint there that looks whole, and
    the ways out."""
    sizes = f"this rank writes {needed / 2**20:,.3f} MiB"
    with suppress(OSError):
        sizes += f", {shutil.disk_usage(root).free / 2**20:,.3f} MiB are free"
    whole = newest_whole(root)
    newest = "it holds no whole checkpoint" if whole is None else f"the newest whole checkpoint is {whole}"
    goes_on = "" if whole is None else f" and --load {root}"
    room = f"make room, or give another folder to --save{goes_on}"
    return f"{error.strerror or error} (--save {root}: {sizes}; {newest}); {room}"


def steps(root: Path) -> list[int]:
    """Iterations, ascending, of the published checkpoints in `root` that look whole: the manifest can be read, and
    files have their sizes. Raises OSError if `root` is no folder that can be read."""
    return sorted(int(path.name.rpartition("_")[2]) for path in _published(root) if _is_whole(path))


def has_checkpoint(root: Path) -> bool:
    """Whether `root` is one of our checkpoints, has one that looks whole, or has a tracker file."""
    return (root / MANIFEST).exists() or (root / TRACKER).exists() or newest_whole(root) is not None


def find(root: Path, step: int | None = None) -> Path:
    """The checkpoint's directory that `--load root` means: root itself if it is one, else that of --ckpt-step `step`;
    without a step the one that the tracker file names, or without that file the last published one that looks whole.

    Raises ValueError if there is no such directory (of a step: none with a manifest), if the tracker file cannot be
    read, or if root itself is one of another step or, with a step, has a manifest that cannot be read.
    """
    if (root / MANIFEST).exists():
        return _of_itself(root, step)
    if step is not None:
        return _of_step(root, step)
    tracker = root / TRACKER
    if not tracker.exists() and (last := newest_whole(root)) is not None:
        return last  # the first save died before it wrote the tracker file, or somebody deleted that file
    try:
        iteration = int(read_plain(tracker))
    except OSError as error:
        raise ValueError(
            f"--load {root}: there is no {TRACKER}, so no checkpoint was ever completed there; give the directory that "
            f"--save was given, or one of its iter_* directories"
        ) from error
    except ValueError as error:
        raise ValueError(f"{tracker}: expected the number of an iteration ({error}); {another(tracker)}") from error
    directory = _of_iteration(root, iteration)
    if not directory.exists():
        raise ValueError(f"{tracker} names iteration {iteration}, but {directory} does not exist; {another(directory)}")
    return directory


def _of_iteration(root: Path, iteration: int) -> Path:
    """The path of an iteration's checkpoint, which is a hidden one after a save that died while it replaced it."""
    final = root / checkpoint_name(iteration)
    aside = _hidden(final, "replaced")
    return aside if aside.exists() and not final.exists() else final


def _of_itself(directory: Path, step: int | None) -> Path:
    if step is not None and (iteration := Manifest.read(directory).iteration) != step:
        raise ValueError(
            f"--ckpt-step {step}: --load {directory} is the checkpoint of iteration {iteration} alone; give --load the "
            f"directory that --save was given, or leave --ckpt-step out"
        )
    return directory


def _of_step(root: Path, step: int) -> Path:
    directory = _of_iteration(root, step)
    if not (directory / MANIFEST).exists():
        names = (path.name for path in root.iterdir()) if root.is_dir() else ()
        there = sorted(int(name.removeprefix("iter_")) for name in names if _PUBLISHED.fullmatch(name))
        raise ValueError(
            f"--ckpt-step {step}: {root} has no checkpoint of this iteration; there are "
            f"{', '.join(map(str, there)) or 'none'}"
        )
    return directory
