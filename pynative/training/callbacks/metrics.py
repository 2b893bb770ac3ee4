"""The callback that writes the log's figures and the run's events as JSON lines."""

import json
from collections import deque
from pathlib import Path

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.folders import is_inside
from parallel_core.system.files import replacing
from pynative.startup.log import HeardWarnings, log, warn
from pynative.training.callbacks.base import RunCallback, TrainingState
from pynative.training.callbacks.events import Event, comparison_event, event, experts_event, last_event, start_event
from pynative.training.callbacks.lines import LinesFile

MOST_WAITING = 1000
"""The largest number of events that wait to be written with the next step; the earliest are dropped."""


class MetricsCallback(RunCallback):
    """Appends `state.metrics` to a file of JSON lines after every step, and the run's events to `events.jsonl` beside
    it; if more than 1000 events wait for the end of a step, the earliest are dropped. A run has this callback on rank 0
    alone. Where a file cannot be written it warns, and training goes on.

    A run that goes on from a checkpoint in the files' folder keeps the lines of the steps up to there, and all events;
    another run's file of figures is moved aside, with the events beside it. Nothing is opened before a step was made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics: LinesFile | None = None
        self._events: LinesFile | None = None
        self._waiting: deque[Event] = deque(maxlen=MOST_WAITING)
        self._is_refused = self._has_ended = False
        self._step = 0
        self._heard = HeardWarnings(lambda said: self._waiting.append(event("warning", self._step, message=said)))

    def on_train_begin(self, state: TrainingState) -> None:
        self._step = state.iteration + 1
        self._waiting.append(start_event(state))

    def on_step_end(self, state: TrainingState) -> None:
        self._waiting += [found for found in (experts_event(state), comparison_event(state)) if found]
        try:
            self._open(state)
            if self._metrics is not None:
                self._metrics.add(state.metrics)
            self._write_events()
            self._is_refused = False
        except OSError as error:  # a full disk must not end the training: the log has these figures, too
            if not self._is_refused:
                warn(f"{self.path}: {error.strerror}; steps are missing in it from step {state.iteration} on")
            self._is_refused = True
        self._step = state.iteration

    def on_train_end(self, state: TrainingState) -> None:
        self._has_ended = True

    def _open(self, state: TrainingState) -> None:
        """Open both files at the first call: if the run goes on there, after the lines of `state.iteration` and later
        are cut off; another run's files are moved aside."""
        if self._events is not None:
            return
        folder, events = self.path.parent, self.path.with_name(commit.EVENTS)
        if self._metrics is None:
            earlier = [path for path in (self.path, events) if path.exists()]
            if not is_inside(state.resumed_from, folder):
                if earlier:
                    names = " and ".join(path.name for path in earlier)
                    log(f"Moved the earlier run's {names} to {commit.set_aside(folder, earlier)}")
            elif self.path in earlier:
                cut(self.path, state.iteration)
            self._metrics = LinesFile(self.path)
        self._events = LinesFile(events)

    def _write_events(self) -> None:
        while self._waiting and self._events is not None:
            self._events.add(self._waiting[0])
            self._waiting.popleft()

    def close(self) -> None:
        self._heard.close()
        if last := last_event(self._step, self._has_ended):
            self._waiting.append(last)
        try:
            self._write_events()
        except OSError as error:
            warn(f"{self.path.with_name(commit.EVENTS)}: {error.strerror}; its last lines are missing")
        for file in (self._metrics, self._events):
            if file is not None:
                file.close()


def cut(path: Path, step: int) -> None:
    """Remove from a file of metrics the lines of `step` and later, and what is no whole line with a step."""
    lines = path.read_bytes().splitlines(keepends=True)
    left = [line for line in lines if _step(line) < step]
    if len(left) < len(lines):
        log(f"{path}: {len(lines) - len(left)} lines from step {step} on are cut: the run goes on there")
        with replacing(path) as file:
            file.writelines(left)


def _step(line: bytes) -> float:
    """The "step" of a line; infinity for what is no whole line."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")
