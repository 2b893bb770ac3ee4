"""The log's figures as JSON lines, which a run that goes on adds to."""

import errno
import json
import os
from pathlib import Path
from typing import BinaryIO

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.folders import is_inside
from parallel_core.system.files import replacing
from pynative.startup.log import log, warn
from pynative.training.callbacks.base import Callback, TrainingState


class MetricsCallback(Callback):
    """Appends `state.metrics` to a file of JSON lines; give it to rank 0 only.

    A run that goes on in the file's folder leaves the lines up to the step where it does; another run's file is moved
    aside.
    """

    reads_parameters = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._is_refused = False

    def on_step_end(self, state: TrainingState) -> None:
        try:
            if self._file is None:
                self._file = self._opened(state)
            _append(self._file, json.dumps(state.metrics) + "\n")
            self._is_refused = False
        except OSError as error:  # a full disk ends no training for figures that the log has, too
            if not self._is_refused:
                warn(f"{self.path}: {error.strerror}; steps are missing in it from step {state.iteration} on")
            self._is_refused = True

    def _opened(self, state: TrainingState) -> BinaryIO:
        """The file, with the lines ahead of this step. It stays open: whoever moves it aside does not disturb."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            if is_inside(state.resumed_from, self.path.parent):
                cut(self.path, state.iteration)
            else:
                log(f"Moved the earlier run's {self.path} to {commit.set_aside(self.path.parent, [self.path])}")
        return self.path.open("ab", buffering=0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _append(file: BinaryIO, line: str) -> None:
    """Add the whole line or, if there is no room, nothing of it."""
    end = file.seek(0, os.SEEK_END)
    if file.write(line.encode()) < len(line):
        file.truncate(end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cut(path: Path, step: int) -> None:
    """Leave the lines of the steps before this one; what a crash cut off is no line."""
    lines = path.read_bytes().splitlines(keepends=True)
    left = [line for line in lines if _step(line) < step]
    if len(left) < len(lines):
        log(f"{path}: {len(lines) - len(left)} lines from step {step} on are cut: the run goes on there")
        with replacing(path) as file:
            file.writelines(left)


def _step(line: bytes) -> float:
    """A line's step; infinite for what is no line."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")
