"""--trace: writes what each rank does in a few steps, on one clock, to one file."""

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from parallel_core.system.files import replacing
from parallel_core.trace import (
    Kind,
    Span,
    chrome_json,
    planned_bubble_share,
    planned_json,
    planned_spans,
    planned_timeline,
    summary,
)
from pynative import parallel_state
from pynative.collectives import Group
from pynative.collectives.texts import gathered_texts
from pynative.startup.log import log, warn
from pynative.training.callbacks.base import RunCallback, TrainingState

ROUNDS = 9
"""The number of barriers by which clocks of hosts are compared."""


class TraceCallback(RunCallback):
    """Records the iterations `first` to `last` - 1, counted from 0, on `ranks` (None: all), and writes
    `folder`/trace.json on rank 0; nothing in a run that goes on behind iteration `first`. Of a step that is made again
    after a rollback, before the file is written, the last time counts. `last` must be above `first`: otherwise it
    records up to the end of training. All ranks have this callback, because all take part in gathering the spans.

    On an Ascend the times are those of the host, which launches operators: the device's are in MindSpore's profile.
    """

    def __init__(self, folder: Path, first: int, last: int, ranks: list[int] | None) -> None:
        self.path, self.first, self.last = folder / "trace.json", first, last
        self._is_wanted = ranks is None or parallel_state.get_global_rank() in ranks
        self._spans: list[Span] = []
        self._is_recording = self._is_written = False

    def on_train_begin(self, state: TrainingState) -> None:
        self._offset = clock_offset(parallel_state.get_world_group())
        self._turn(state)

    def on_step_end(self, state: TrainingState) -> None:
        if self._is_recording:
            self._take(state)
        self._turn(state)

    def on_train_end(self, state: TrainingState) -> None:
        if self._is_recording and not self._is_written:
            self._stop(state)
        elif not self._is_written:
            warn(f"No trace: it was to go from --profile-step-start {self.first} to {self.last}")

    def _turn(self, state: TrainingState) -> None:
        """Begin or end recording, which is done on wanted ranks alone, between two steps."""
        if state.iteration == self.last and self._is_recording:
            self._stop(state)
        elif self._is_recording or self._is_written:  # a rollback may lead behind `first`
            return
        elif state.iteration == self.first and state.iteration < state.config.training_config.training_iters:
            self._is_recording = True
            if self._is_wanted:
                state.recorder.begin()

    def _take(self, state: TrainingState) -> None:
        if self._is_wanted:
            step, spans = state.iteration, state.recorder.spans_of(state.result)
            older = [span for span in self._spans if span.step < step]  # after a rollback steps come again
            new = [span._replace(start=span.start - self._offset, step=step) for span in spans]
            self._spans = older + (new if step > self.first else [])

    def _stop(self, state: TrainingState) -> None:
        self._is_recording, self._is_written = False, True
        if self._is_wanted:
            state.recorder.end()
        spans = _of_all_ranks(self._spans, parallel_state.get_world_group())
        if parallel_state.get_global_rank() == 0:
            micro_batches = state.result.samples // (
                state.config.dataset_config.batch_size * state.config.parallel_config.data_parallel_size
            )
            stage_of = partial(parallel_state.get_topology().dense.coordinate, "pp")
            timeline = planned_timeline(
                state.config, stage_of, spans, micro_batches, state.step_cell.pipeline.ordered_by
            )
            planned, actions = planned_bubble_share(timeline), planned_json(planned_spans(timeline))
            try:
                with replacing(self.path) as file:
                    file.write(chrome_json(spans, planned={"bubble_share": planned, "spans": actions}).encode())
                log(f"Trace of {_steps(spans)} written to {self.path}: {_shares(spans)}; the schedule's {planned:.1%}")
            except OSError as error:  # a failed trace does not end the training
                warn(f"No trace: {self.path}: {error.strerror}")


def clock_offset(world: Group) -> float:
    """An estimate of the seconds that this rank's `perf_counter` is ahead of rank 0's: 0 on rank 0's host, whose
    processes share a clock; elsewhere the median over a few barriers, and of that over the host's ranks. world: the
    group of all ranks. All ranks call this."""
    host = Path("/proc/sys/kernel/random/boot_id").read_text()
    number = int(host.replace("-", "")[:7], 16)
    seconds = []
    for _ in range(ROUNDS):
        world.barrier()
        seconds.append(time.perf_counter())
    hosts = _gathered(np.array([number], np.int64), world)[:, 0]
    clocks = _gathered((np.array(seconds) * 1e6).astype(np.int64), world) / 1e6
    ahead = np.median(clocks - clocks[0], axis=1)
    return 0.0 if number == hosts[0] else float(np.median(ahead[hosts == number]))


def _gathered(row: Array, world: Group) -> Array:
    """The rows of all ranks, [ranks, the row's length]."""
    return np.asarray(world.all_gather(Tensor(row[None])).asnumpy())


def _of_all_ranks(spans: list[Span], world: Group) -> list[Span]:
    """The spans of all ranks, on every rank."""
    text = json.dumps([(*span[:1], span.kind.value, *span[2:]) for span in spans])
    texts = gathered_texts(text, world)
    return [Span(row[0], Kind(row[1]), *row[2:]) for text in texts for row in json.loads(text)]


def _steps(spans: list[Span]) -> str:
    steps = {span.step for span in spans} or {0}
    return f"steps {min(steps)} to {max(steps)}"


def _shares(spans: list[Span]) -> str:
    """A sentence with the shares of time over all steps and ranks: computing, messages, data, unknown, and the
    bubble."""
    found = summary(spans)
    total = sum(one.total for one in found) or 1.0
    parts = {"computing": "computing", "exposed messages": "messages", "data": "data", "not recorded": "unknown"}
    shares = [f"{words} {sum(getattr(one, part) for one in found) / total:.1%}" for words, part in parts.items()]
    bubble = sum(one.bubble_share for one in found) / max(1, len(found))
    return f"{', '.join(shares)}; bubble {bubble:.1%} of the pipeline's time"
