"""How a directory appears whole or not at all.

A checkpoint is written into a hidden directory of the same file system and renamed when every byte is on the disk; then
`latest_checkpointed_iteration.txt` is replaced. A process that dies at any point leaves the earlier checkpoint the
latest, and at most a hidden directory that the next save removes. Only rank 0 calls what is here.
"""

import os
import re
import shutil
from pathlib import Path

from parallel_core.checkpoint.manifest import MANIFEST
from parallel_core.files import replacing

TRACKER = "latest_checkpointed_iteration.txt"
_PUBLISHED = re.compile(r"iter_\d{7,}")
_HIDDEN = re.compile(r"\.(?P<name>iter_\d{7,})\.(?P<state>partial|replaced|deleted)")


def checkpoint_name(iteration: int) -> str:
    """Directory of an iteration, as Megatron names it."""
    return f"iter_{iteration:07d}"


def _hidden(directory: Path, state: str) -> Path:
    return directory.with_name(f".{directory.name}.{state}")


def partial_directory(root: Path, iteration: int) -> Path:
    """Where an iteration is written before it is published."""
    return _hidden(root / checkpoint_name(iteration), "partial")


def sync_directory(directory: Path) -> None:
    """Bring a directory's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def begin(root: Path, iteration: int) -> Path:
    """Remove what interrupted saves left in `root`, and make the directory that the writers fill."""
    root.mkdir(parents=True, exist_ok=True)
    clean(root)
    partial = partial_directory(root, iteration)
    partial.mkdir()
    return partial


def clean(root: Path) -> None:
    """Remove leftovers; a checkpoint that was moved aside and whose replacement never came goes back to its place."""
    for leftover in root.glob(f".{TRACKER}.*.tmp"):
        leftover.unlink()
    for path in list(root.iterdir()):
        match = _HIDDEN.fullmatch(path.name)
        if not match:
            continue
        if match["state"] == "replaced" and not (root / match["name"]).exists():
            path.rename(root / match["name"])
        else:
            shutil.rmtree(path)


def publish(root: Path, iteration: int, keep: int, retain: int | None = None) -> Path:
    """Give the partial directory its name, make it the latest, and delete others as `prune` says."""
    final = root / checkpoint_name(iteration)
    partial = partial_directory(root, iteration)
    sync_directory(partial)
    aside = _hidden(final, "replaced")
    if final.exists():
        final.rename(aside)
    partial.rename(final)
    sync_directory(root)
    with replacing(root / TRACKER) as file:
        file.write(f"{iteration}\n".encode())
    sync_directory(root)
    shutil.rmtree(aside, ignore_errors=True)
    prune(root, keep, retain)
    return final


def prune(root: Path, keep: int, retain: int | None = None) -> None:
    """Delete all but the `keep` checkpoints that were published last and those of iterations that `retain` divides."""
    published = [path for path in root.iterdir() if _PUBLISHED.fullmatch(path.name) and (path / MANIFEST).exists()]
    # By time, not by iteration: another run may have left higher iterations in the same directory.
    published.sort(key=lambda path: ((path / MANIFEST).stat().st_mtime_ns, path.name))
    for path in published[:-keep]:
        if retain and int(path.name.removeprefix("iter_")) % retain == 0:
            continue
        shutil.rmtree(path.rename(_hidden(path, "deleted")))


def cannot_write(root: Path, needed: int, error: OSError) -> str:
    """What to tell a user whose checkpoint of `needed` bytes on this rank could not be written into `root`."""
    free = shutil.disk_usage(root).free if root.is_dir() else 0
    sizes = f"this rank writes {needed / 2**20:,.1f} MiB, {free / 2**20:,.1f} MiB are free"
    try:
        newest = f"the newest whole checkpoint is {find(root)}"
    except ValueError:
        newest = "it holds no whole checkpoint"
    return (
        f"{error.strerror} (--save {root}: {sizes}; {newest}); make room, or give another folder to --save and "
        f"--load {root}"
    )


def has_checkpoint(root: Path) -> bool:
    """Whether `root` is a checkpoint or has a latest one."""
    return (root / MANIFEST).exists() or (root / TRACKER).exists()


def find(root: Path, step: int | None = None) -> Path:
    """The checkpoint that `--load root` means: the latest one in it, that of --ckpt-step `step`, or root itself.

    Raises ValueError if there is none.
    """
    if (root / MANIFEST).exists():
        return root
    if step is not None:
        return _of_step(root, step)
    tracker = root / TRACKER
    try:
        iteration = int(tracker.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"--load {root}: there is no {TRACKER}, so no checkpoint was ever completed there; give the directory that "
            f"--save was given, or one of its iter_* directories"
        ) from error
    except ValueError as error:
        raise ValueError(f"{tracker}: expected the number of an iteration ({error})") from error
    final = root / checkpoint_name(iteration)
    aside = _hidden(final, "replaced")
    if not final.exists() and not aside.exists():
        raise ValueError(
            f"{tracker} names iteration {iteration}, but {final} does not exist; give one of the iter_* directories of "
            f"{root} to --load"
        )
    return final if final.exists() else aside


def _of_step(root: Path, step: int) -> Path:
    directory = root / checkpoint_name(step)
    if not (directory / MANIFEST).exists():
        there = sorted(int(path.parent.name.removeprefix("iter_")) for path in root.glob(f"iter_*/{MANIFEST}"))
        raise ValueError(
            f"--ckpt-step {step}: {root} has no checkpoint of this iteration; there are "
            f"{', '.join(map(str, there)) or 'none'}"
        )
    return directory
