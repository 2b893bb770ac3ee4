"""A file of JSON lines that a run adds to."""

import errno
import json
import os
from pathlib import Path
from typing import Any

_ENCODER = json.JSONEncoder(default=str)


class LinesFile:
    """Open for adding. It stays open: whoever moves the file aside does not disturb. Raises OSError, as `add` does."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        end = self._file.seek(0, os.SEEK_END)
        if end and os.pread(self._file.fileno(), 1, end - 1) != b"\n":  # a line that a crash cut off is closed first
            self._file.write(b"\n")

    def add(self, value: Any) -> None:
        """Add the whole line or, if there is no room, nothing of it. What JSON does not have becomes a text."""
        line = _ENCODER.encode(value).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) < len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """The file is closed."""
        self._file.close()
