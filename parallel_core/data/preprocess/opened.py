"""Input files opened for reading, unpacked on the way."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast


def package(name: str, extra: str, ending: str) -> ModuleType:
    """The package or module `name`, imported. Raises ValueError with the command that installs it, as the extra
    `extra`, if it is missing. ending: that of the files that need it, for the message."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"--input: {ending} files need {name}: pip install -e '.[{extra}]'") from error


_PIECE = 1 << 12
"""Bytes of a .zst file that are unpacked at once: few, since a block of 4 bytes may stand for 128 KiB."""


class _Frames(io.RawIOBase):
    """The unpacked content of a .zst file. Reading raises EOFError where the file ends within a frame, which the
    package's own reader takes for its end."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._package = raw, package("zstandard", "zstd", ".zst").ZstdDecompressor()
        self._frame: Any = None
        self._packed, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer's beginning, and return the number of bytes, 0 behind the last frame. Raises EOFError where
        the file ends within a frame, and the package's ZstdError for damage."""
        while not self._ready:
            packed = self._packed or self._raw.read(_PIECE)
            if not packed and self._frame is None:
                return 0
            if not packed:
                raise EOFError("it ends within a frame")
            frame = self._frame or self._package.decompressobj()
            self._ready = memoryview(frame.decompress(packed))
            self._frame, self._packed = (None, frame.unused_data) if frame.eof else (frame, b"")
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _unzstandard(raw: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Frames(raw)))


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

    Raises ValueError for a missing package and, also while the content is read, for a packed file that is damaged or
    cut off; OSError for a file that cannot be opened.
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
