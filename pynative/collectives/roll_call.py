"""A roll call: all ranks are asked where they stand, and rank 0 shows their answers as a table; with HCCL a rank
reports itself alone.

A rank asks when it gets SIGUSR2, on CPUs also when it has waited for the whole time-out. A thread of each rank looks
about twice a second whether somebody asked, and answers for the main thread, which may be anywhere: in a wait, in a
computation, in a script's own loop.
"""

import contextlib
import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from parallel_core.whereabouts import Whereabouts

SIGNAL = signal.SIGUSR2
LOOK_SECONDS = 0.5
"""Seconds from one look for a question to the next, which takes some 20 microseconds of a processor's time."""
GATHER_SECONDS = 2.5
"""Seconds for which rank 0 waits for answers before it shows the table."""
SHOWN_SECONDS = 4.0
"""The longest time in seconds that a rank whose wait was too long waits for the table to be shown, before it fails."""


class Board(Protocol):
    """The place of a job's roll calls: numbered questions, and the ranks' answers."""

    rank: int
    world_size: int

    def asked(self) -> int:
        """The number of the last question that reached this rank; 0: there was none."""

    def ask(self) -> None:
        """Ask every rank (with HCCL this one alone) where it stands; may do nothing soon after a question."""

    def answer(self, number: int, text: str) -> None:
        """Give this rank's answer (a packed `Whereabouts`) to question `number`."""

    def answers(self, number: int) -> list[str]:
        """The answers to question `number`, the last one asked, that have come to this rank's host, in rank order; none
        with HCCL."""

    def show(self, number: int) -> None:
        """Say that the table of question `number` was shown."""

    def is_shown(self, number: int) -> bool:
        """Whether this rank knows that the table of question `number`, the last one, was shown; with HCCL True."""


class OwnBoard:
    """The board of a rank that reaches others by collectives alone (HCCL): a signal to it makes it report itself
    alone."""

    world_size = 1

    def __init__(self, rank: int) -> None:
        self.rank, self._asked = rank, 0

    def asked(self) -> int:
        return self._asked

    def ask(self) -> None:
        self._asked += 1

    def answer(self, number: int, text: str) -> None:
        """Do nothing: no other rank asks."""

    def answers(self, number: int) -> list[str]:
        return []

    def show(self, number: int) -> None:
        """Do nothing: there is no table."""

    def is_shown(self, number: int) -> bool:
        return True


class RollCall:
    """This rank's part in roll calls, from `start` to `close`."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._thread: threading.Thread | None = None
        self._ends = False

    def start(self, describe: Callable[[], Whereabouts], show: Callable[[Sequence[Whereabouts], int], None]) -> None:
        """Start a thread that, until `close`, answers the latest question with `describe()`; the answer's lines go to
        this rank's error stream, too. On CPUs rank 0 of several ranks then calls `show(answers, world size)` with the
        answers that came within 2.5 s. A SIGUSR2 to this process asks, as `Board.ask` does."""
        self.close()
        self._describe, self._show, self._ends = describe, show, False
        self._answered = self._board.asked()
        self._signals, self._written = os.pipe()
        # faulthandler is written in C: it answers while Python is blocked, too
        faulthandler.register(SIGNAL, file=self._written, all_threads=False)
        self._thread = threading.Thread(target=self._run, daemon=True, name="roll call")
        self._thread.start()

    def ask_and_wait(self) -> None:
        """Ask as `Board.ask` does, and wait until rank 0 has shown the table, for about 4 s at most; on CPUs another
        host than rank 0's does not learn it, and waits so long. Does nothing before `start` and after `close`."""
        if self._thread is None:
            return
        self._board.ask()
        number, end = self._board.asked(), time.monotonic() + SHOWN_SECONDS
        while not self._board.is_shown(number) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS / 10)

    def close(self) -> None:
        """End the thread, and handle SIGUSR2 no longer; nothing unless `start` was called."""
        if self._thread is None:
            return
        faulthandler.unregister(SIGNAL)
        self._ends = True
        os.write(self._written, b"\n")
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        os.close(self._signals)
        os.close(self._written)

    def _run(self) -> None:
        while True:
            if select.select([self._signals], [], [], LOOK_SECONDS)[0]:
                os.read(self._signals, 1 << 16)
                if self._ends:
                    return
                self._board.ask()
            if (number := self._board.asked()) != self._answered:
                self._answered = number
                self._answer(number)

    def _answer(self, number: int) -> None:
        own = self._describe()
        with contextlib.suppress(OSError):  # writes past Python's buffer, whose lock the main thread may hold
            os.write(2, ("\n".join(own.lines()) + "\n").encode())
        self._board.answer(number, own.packed())
        if self._board.rank == 0 and self._board.world_size > 1:
            self._show(self._gathered(number), self._board.world_size)
            self._board.show(number)

    def _gathered(self, number: int) -> list[Whereabouts]:
        end = time.monotonic() + GATHER_SECONDS
        while len(texts := self._board.answers(number)) < self._board.world_size and time.monotonic() < end:
            time.sleep(LOOK_SECONDS / 10)
        return [Whereabouts.unpacked(text) for text in texts]
