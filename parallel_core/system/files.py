"""Files that appear whole or not at all, and files of others that are read with care."""

import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO


class ReplacingFile:
    """A file being written under a temporary name beside `path`; when published it is renamed to `path`, and replaces
    a file that is there. The folder is made if it is not there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The name is new in every process, so ranks that write the same file at once don't meet.
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        self.file: BinaryIO = self._temporary.open("xb")

    def publish(self) -> None:
        """Bring the bytes to the disk, then rename the file to `path` in one step."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self._temporary, self.path)

    def discard(self) -> None:
        """Remove the temporary file; does nothing once it is published."""
        with suppress(OSError):  # what a full disk did not take is not needed
            self.file.close()
        self._temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Context manager of a `ReplacingFile`'s binary file to write, which is published as `path` when the block ends and
    removed when the block fails."""
    replacement = ReplacingFile(path)
    try:
        yield replacement.file
        replacement.publish()
    finally:
        replacement.discard()


def plain_file(folder: Path, name: str, *, links: bool = False) -> Path:
    """The path of the file that a checkpoint calls `name`, inside `folder`; it need not exist. Raises ValueError for a
    name that might lead elsewhere: an absolute one, "", ".", one with a part "..", a backslash or NUL and, unless
    `links`, one that is a link or goes through one. Raises OSError for a name too long for the file system."""
    parts = PurePosixPath(name).parts
    if not parts or "\\" in name or "\0" in name or PurePosixPath(name).is_absolute() or ".." in parts:
        raise ValueError(f"{folder}: names the file {name!r}, which does not lie in it; nothing of it was read")
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink() and not links:
            raise ValueError(f"{path}: is a link; a checkpoint's files must lie in its folder: copy what it points to")
    return path


def parse_json(text: str | bytes, where: Path) -> Any:
    """The value of JSON that may come from any source, as Python's `json` reads it (NaN and Infinity, too).

    Raises ValueError naming `where`, the text's file, if Python cannot read the text as JSON, as where it is nested too
    deep, or if it has a name twice in an object.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not readable JSON ({error})") from error


_MOST = 1 << 31
"""The most bytes that a file may have to be read at once: no description of a checkpoint comes near."""


def regular(path: Path) -> Path:
    """The path, if it is a regular file or a link to one. Raises ValueError for anything else that is there, such as a
    folder, a pipe or a device, and OSError for a path that is missing or cannot be looked at."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: is no file")
    return path


def read_plain(path: Path) -> bytes:
    """All bytes of a regular file. Raises ValueError for anything else, such as a folder, a pipe or a device, and for
    more than 2 GiB, OSError for a file that is missing or cannot be read."""
    if regular(path).stat().st_size > _MOST:
        raise ValueError(f"{path}: has {path.stat().st_size} bytes, which is too much to be what it is called")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """The value of a file of JSON. Raises ValueError if it is no regular file or has more than 2 GiB, and as
    `parse_json` does; OSError if it is missing or cannot be read."""
    return parse_json(read_plain(path), path)


def read_yaml(path: Path) -> Any:
    """The value of a YAML file. Raises OSError, and ValueError for a text that is no YAML of plain values."""
    import yaml  # takes 10 ms

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        # PyYAML fails with others than its own at `!!timestamp abc`, `!!int ""` and lists nested too deeply
        raise ValueError(" ".join(str(error).split())) from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found
