"""The progress of a run: a line that is overwritten on a terminal, else a line from time to time."""

import time
from collections.abc import Callable
from typing import TextIO

_COLUMNS = 80
_EVERY = {True: 0.2, False: 10.0}
"""Whether the stream is a terminal -> seconds from one line to the next."""


class ProgressBar:
    """A progress line: the share that is done (on a terminal as a bar, too, if it fits in), the number of documents,
    documents and MB a second, and the time that remains, where that can be estimated."""

    def __init__(
        self,
        total: int,
        stream: TextIO,
        documents: int = 0,
        bytes_read: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """total: bytes of all input. stream: gets the lines. documents, bytes_read: done by an earlier run; rates do
        not count them. clock: the time in seconds."""
        self._total, self.stream, self._clock = max(1, total), stream, clock
        self._is_terminal = stream.isatty()
        self._started = self._shown = clock()
        self._before = documents, bytes_read
        self._is_open = False

    def show(self, documents: int, bytes_read: int) -> None:
        """Write the line for these totals, those of an earlier run included; nothing within 0.2 s (10 s where the
        stream is no terminal) of the last line or of the bar's making."""
        now = self._clock()
        if now - self._shown >= _EVERY[self._is_terminal]:
            self._shown = now
            self._write(self.line(documents, bytes_read))

    def line(self, documents: int, bytes_read: int) -> str:
        """The line for these totals, those of an earlier run included; at most 79 columns."""
        elapsed = max(1e-9, self._clock() - self._started)
        done, read = self._before
        speed = (bytes_read - read) / elapsed
        share = min(1.0, bytes_read / self._total)
        left = f"{_duration((self._total - bytes_read) / speed)} left" if speed > 0 else ""
        rates = f"{documents} documents {(documents - done) / elapsed:.0f}/s {speed / 1e6:.1f} MB/s {left}"
        text = f"{share:4.0%} {rates}"
        room = _COLUMNS - 1 - len(text) - 3
        bar = f" [{('#' * round(share * room)).ljust(room, '.')}]" if self._is_terminal and room >= 5 else ""
        return f"{share:4.0%}{bar} {rates}"[: _COLUMNS - 1]

    def _write(self, line: str) -> None:
        self.stream.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
        self.stream.flush()
        self._is_open = self._is_terminal

    def close(self) -> None:
        """Clear the line on a terminal."""
        if self._is_open:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
