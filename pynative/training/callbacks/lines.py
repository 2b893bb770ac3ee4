"""A file of JSON lines to which a run appends."""

import errno
import json
import os
from pathlib import Path
from typing import Any

_ENCODER = json.JSONEncoder(default=str)


class LinesFile:
    """A file of JSON lines, open for adding; it is made, with its folder, if it is not there. It stays open, so that a
    file that is moved meanwhile is still written. Making the object and `add` raise OSError if the file cannot be
    opened or written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        end = self._file.seek(0, os.SEEK_END)
        if end and os.pread(self._file.fileno(), 1, end - 1) != b"\n":  # a line that a crash cut off is closed first
            self._file.write(b"\n")

    def add(self, value: Any) -> None:
        """Add a value as one line, or nothing of it if there is no room (OSError). Values of types that JSON lacks
        become text (`str`); a float that is not finite is written as NaN, Infinity or -Infinity."""
        line = _ENCODER.encode(value).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) < len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
