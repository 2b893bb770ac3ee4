"""Input files opened for reading, unpacked on the way."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast


def package(name: str, extra: str, ending: str) -> ModuleType:
    """The package or module `name`, imported. Raises ValueError with the command that installs it, as the extra
    `extra`, if it is missing. ending: that of the files that need it, for the message."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"--input: {ending} files need {name}: pip install -e '.[{extra}]'") from error


def _unzstandard(raw: BinaryIO) -> BinaryIO:
    reader = package("zstandard", "zstd", ".zst").ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return cast(BinaryIO, io.BufferedReader(reader))


PACKED: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw)),
    ".zst": _unzstandard,
}
"""Ending of a packed file -> function from the opened file to its unpacked content."""


def kind(file: Path) -> str:
    """The ending that names the form of a file's content, without that of packing: ".jsonl" for data.jsonl.gz; ""
    without one."""
    return (Path(file.stem) if file.suffix in PACKED else file).suffix


@contextmanager
def opened(file: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """A context manager that opens a file and gives its unpacked content, and the file itself, whose position tells how
    many of its bytes have been read, of a packed file maybe ahead of the content.

    Raises ValueError for a missing package and, also while the content is read, for a packed file that cannot be
    unpacked; a .zst file that is cut off just ends earlier. OSError for a file that cannot be opened.
    """
    with file.open("rb") as raw:
        unpack = PACKED.get(file.suffix)
        try:
            yield (unpack(raw) if unpack else raw), raw
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"--input {file}: is damaged ({error}); copy it again") from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":  # named by its class name: the package may not be installed
                raise
            raise ValueError(f"--input {file}: is damaged ({error}); copy it again") from error
