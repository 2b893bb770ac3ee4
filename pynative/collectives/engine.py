"""The engine that moves outstanding operations on, without a thread.

An operation is a generator: it does what it can and yields the targets that it waits for (`mailbox.Target`, all of them
needed). Operations that must not overtake each other share a lane; the first of every lane may move whenever this rank
is inside any call of ours that waits, or looks in between its computations. So work posted in any order on several
channels completes whatever is waited for first.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from pynative.collectives.trace import Count
from pynative.collectives.wire.arena import Arena
from pynative.collectives.wire.mailbox import Channels, Target
from pynative.collectives.wire.waiting import Pending, Waiter

A = TypeVar("A")
R = TypeVar("R")

Steps = Generator[Sequence[Target], None, Any]


class Lane:
    """A queue of operations that must not overtake each other (`works`), and the number of operations ever issued on it
    (`calls`)."""

    def __init__(self) -> None:
        self.works: deque[Work] = deque()
        self.calls = 0


class Handle(ABC):
    """An operation whose result may still be on its way."""

    @abstractmethod
    def wait(self) -> Any:
        """Block until the operation is complete, and return its result."""

    @abstractmethod
    def done(self) -> bool:
        """Whether the operation is complete, so that `wait` would not block."""

    def then(self, follow: Callable[[Any], Any]) -> "Handle":
        """A handle whose `wait` waits for this one and returns `follow(result)`."""
        return _Followed(self, follow)


class _Followed(Handle):
    def __init__(self, first: Handle, follow: Callable[[Any], Any]):
        self._first, self._follow = first, follow

    def wait(self) -> Any:
        return self._follow(self._first.wait())

    def done(self) -> bool:
        return self._first.done()


class Work(Pending, Handle):
    """An operation in the engine. `wait()` returns its result, or raises what went wrong."""

    def __init__(self, engine: "Engine", lane: Lane, steps: Steps, label: object, count: Count):
        super().__init__(label)
        self.finished = False
        self._engine = engine
        self.lane = lane
        self._steps = steps
        self.count = count
        self._issued = time.perf_counter()
        self._result: Any = None

    def wait(self) -> Any:
        """Block until the operation is complete, and return its result: a Tensor; None for a send or a barrier."""
        if not self.finished:
            start, idle = time.perf_counter(), self._engine.idle
            self._engine.finish(self)
            self.count.add_inside(start, self._engine.idle - idle)
        return self._result

    def done(self) -> bool:
        """Whether the operation is complete, after moving everything on that can move."""
        if not self.finished:
            self._engine.progress()
        return self.finished

    def step(self, words: memoryview) -> bool:
        """Move the operation on as far as possible; whether it moved. words: the arena's 64-bit words."""
        moved = False
        while self.ready(words):
            moved = True
            try:
                self.targets = next(self._steps)
            except StopIteration as stop:
                self._result = stop.value
                self.finished = True
                self.count.add_interval(self._issued)
                break
        return moved


class Completed(Handle):
    """A handle of an operation that needed no other rank, and so is complete: `wait` returns its result."""

    finished = True

    def __init__(self, result: Any):
        self._result = result

    def wait(self) -> Any:
        return self._result

    def done(self) -> bool:
        return True


class Engine:
    """The outstanding operations of this rank, in lanes; `timeout` is the seconds that one wait may last."""

    def __init__(self, arena: Arena, waiting: Waiter, channels: Channels, timeout: float):
        self.arena = arena
        self.waiting = waiting
        self.channels = channels
        self.timeout = timeout
        self.idle = 0.0
        """Seconds so far in which this rank waited and nothing could move."""
        self._busy: list[Lane] = []
        self._waited_for: Work | None = None

    def issue(self, lane: Lane, steps: Steps, label: object, count: Count) -> Work:
        """Append an operation to its lane and start it if it is the first there. `str(label)` names it, `count` gets
        its time."""
        start = time.perf_counter()
        work = Work(self, lane, steps, label, count)
        lane.works.append(work)
        if len(lane.works) == 1:
            self._busy.append(lane)
            self._guarded(self._drain, lane)
        count.add_inside(start)
        return work

    def progress(self) -> bool:
        """Move the operations of every lane on as far as possible without waiting; whether any moved."""
        return any([self._guarded(self._drain, lane) for lane in tuple(self._busy)])

    def look_in(self) -> None:
        """Move operations on as `progress` does, for a rank between its computations; the time it takes is counted for
        the first operation of the lane that has been busy longest."""
        if self._busy:
            start, oldest = time.perf_counter(), self._busy[0].works[0]
            self.progress()
            oldest.count.add_inside(start)

    def finish(self, work: Work) -> None:
        """Move everything on until `work` is complete. Raises what stopped this rank's collectives."""
        self._guarded(self._finish, work)

    def unfinished(self) -> list[str]:
        """Labels of the operations that are outstanding, as text."""
        return [str(work.label) for lane in self._busy for work in lane.works]

    def standing(self) -> tuple[bool, list[tuple[object, tuple[int, ...]]]]:
        """(whether this rank waits; for each lane with outstanding operations the first one's label and the ranks
        without which it does not move on, beginning with the lane of the operation that is waited for). Called by
        another thread, while the main one waits or works."""
        waited = self._waited_for
        heads = [works[0] for lane in tuple(self._busy) if (works := tuple(lane.works))]
        if waited is not None:
            first = next(iter(tuple(waited.lane.works)), waited)
            heads = [first, *(head for head in heads if head is not first)]
        words = self.arena.words
        return waited is not None, [
            (head.label, tuple(sorted({rank for rank, word, value in head.targets if words[word] < value})))
            for head in heads
        ]

    def _drain(self, lane: Lane) -> bool:
        moved = False
        works = lane.works
        while works and works[0].step(self.arena.words):
            moved = True
            if not works[0].finished:
                break
            works.popleft()
        if not works:
            self._busy.remove(lane)
        return moved

    def _finish(self, work: Work) -> None:
        deadline = 0.0
        while not work.finished:
            if self.progress():
                continue
            deadline = deadline or time.monotonic() + self.timeout
            start, self._waited_for = time.perf_counter(), work
            try:
                self.waiting.pause(work.lane.works[0], [lane.works[0] for lane in self._busy], deadline)
            finally:
                self.idle += time.perf_counter() - start
                self._waited_for = None

    def _guarded(self, action: Callable[[A], R], argument: A) -> R:
        """Run `action(argument)`; an error inside it stops this rank's collectives for good, and is told to the other
        ranks."""
        self.waiting.raise_failure()
        try:
            return action(argument)
        except BaseException as error:
            self.waiting.fail(error)
            raise
