"""A process that measures one of two programs, so that they are asked in turns and share nothing."""

import subprocess
from collections.abc import Sequence


class Program:
    """A running process of `command`, which prints `ready`, then for each line of numbers the seconds that its task
    took."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self._line() != "ready":
            pass

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("error: a measured program ended early")
        return line.strip()

    def seconds(self, *numbers: int) -> float:
        """Send the numbers; the seconds with which the process answers."""
        assert self.process.stdin is not None
        print(*numbers, file=self.process.stdin, flush=True)
        return float(self._line())
