"""Files of JSON lines that somebody may still be writing, or has damaged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_AT_ONCE = 1 << 24
"""The most bytes that are read in one piece."""


class LinesReader:
    """A reader of a growing file of JSON lines that gives, each time, the lines added since the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable = 0
        """The number of whole lines of the present file so far, without empty ones, that are no JSON object."""
        self.read = 0
        """The number of whole lines read so far, those that came anew counted again."""
        self._end, self._of = 0, (0, 0)

    def new(self) -> tuple[bool, Iterator[dict[str, Any]]]:
        """(whether the lines given before no longer count: in the first call for a file, and where it is another one
        (inode), shorter than what was read, or gone after lines were read; the lines not given yet, as objects, read
        while the iterator is taken). An empty line is {}; a line that is no JSON object is left out. A last line
        without its end comes when it is whole. A missing file has no lines. Raises OSError, also from the iterator, if
        it cannot be read."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return self._end > 0, self._lines(0)
        of = status.st_dev, status.st_ino
        begins_anew = of != self._of or status.st_size < self._end
        self._of = of
        if begins_anew:
            self._end = self.unreadable = 0
        return begins_anew, self._lines(status.st_size)

    def _lines(self, size: int) -> Iterator[dict[str, Any]]:
        if not size:
            self._end = self.unreadable = 0
            return
        with self.path.open("rb") as file:
            file.seek(self._end)
            rest = b""
            while (room := size - self._end - len(rest)) > 0 and (read := file.read(min(_AT_ONCE, room))):
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    self._end += len(line) + 1
                    self.read += 1
                    yield from self._parsed(line)

    def _parsed(self, line: bytes) -> Iterator[dict[str, Any]]:
        try:
            value = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        else:
            self.unreadable += 1
