"""Waiting for other ranks: cheaply, noticing death, lateness, failure and deadlock, and naming the ranks at fault.

A wait looks at the words of shared memory that others are to raise for some microseconds, then lets other processes
run, then sleeps in `poll` on its doorbell and on the process descriptors (pidfd) of the ranks it waits for, so that a
message and a death both wake it. A rank that sleeps says in its board, a page of the shared memory, what it waits for.
If everybody whom it needs, and whom those need, sleeps as well, on this host, and none of them can move, the program is
deadlocked, and that is an error soon and not after the time-out. Between hosts, and where a rank waits for more than 64
targets, a deadlock ends by the time-out.
"""

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Sequence

from pynative.collectives.errors import CollectiveError, CollectiveMismatch, PeerFailed, PeerLate, PeerLost
from pynative.collectives.wire import arena as layout
from pynative.collectives.wire.arena import Arena, fence
from pynative.collectives.wire.mailbox import Target
from pynative.collectives.wire.network import Network

BUSY_LOOKS = 150
"""The number of looks at the words that it waits for (about 50 microseconds) before a waiting rank lets other processes
run; no look if this host has more ranks than cores, or there are several hosts."""
YIELDING_LOOKS = 40
"""The number of looks, each after other processes ran, before a waiting rank sleeps."""
CROWDED_LOOKS = 2
"""Those where a host has more ranks than cores: each yield is a change of process, and those that wait take the time of
those that work (8 ranks on 2 cores: with 40 looks a run takes a tenth longer)."""
SLEEP_MILLISECONDS = 100
KINDS: tuple[type[CollectiveError], ...] = (CollectiveError, CollectiveMismatch, PeerLost, PeerLate, PeerFailed)
"""Errors that a rank tells the others as such; a subclass is told as the nearest of them."""
NAMED_RANKS = 100
"""The most ranks that a told error names."""


class Pending:
    """An outstanding operation: it may move on when all its `targets` are reached, each (rank, index of a word of the
    shared memory, the value that the rank is to raise it to). `str(label)` names it in messages."""

    def __init__(self, label: object):
        self.label = label
        self.targets: Sequence[Target] = ()

    def ready(self, words: memoryview) -> bool:
        """Whether all targets are reached. words: those of the shared memory."""
        for _, word, value in self.targets:  # noqa: SIM110 - a generator costs three times as much
            if words[word] < value:
                return False
        return True


class Waiter:
    """This rank's waits: its doorbell (an eventfd that wakes it), descriptors that say that a rank ended, and the
    boards (pages of the shared memory) on which ranks say what they wait for.

    `doorbells` (descriptors) and `pids` are those of the ranks of this host, by rank; `names` are all ranks' names in
    messages.
    """

    def __init__(
        self, arena: Arena, doorbells: dict[int, int], names: dict[int, str], pids: dict[int, int], network: Network
    ):
        self.arena = arena
        self.rank = arena.rank
        self.names = names
        self.failure: CollectiveError | None = None
        self.before_late: Callable[[], object] = lambda: None
        """Called when a wait has lasted for the whole time-out, before the error is raised."""
        self._doorbells = doorbells
        self._network = network
        self.processes = {rank: _watch(pid) for rank, pid in pids.items() if rank != self.rank} | network.ended
        self._sleeping = [Arena.board(rank) + layout.SLEEPING for rank in range(arena.world_size)]
        self._board = Arena.board(self.rank)
        is_crowded, busy = len(doorbells) > len(os.sched_getaffinity(0)), 0 if network.peers else BUSY_LOOKS
        self._looks = range(CROWDED_LOOKS) if is_crowded else range(-busy, YIELDING_LOOKS)
        self._suspicion: dict[int, tuple[int, int]] | None = None
        network.start(lambda: self.ring(self.rank), self._store_failure)

    def ring(self, rank: int) -> None:
        """Wake `rank` if it is of this host and sleeps; nothing for a rank of another host."""
        fence()
        if self.arena.words[self._sleeping[rank]]:
            os.eventfd_write(self._doorbells[rank], 1)

    def pause(self, work: Pending, heads: Sequence[Pending], deadline: float) -> None:
        """Wait until one of `heads`, the first operations of all queues, may move on; `work`, one of them, is that
        which errors name and whose ranks are watched. deadline: by `time.monotonic`.

        Raises PeerLost if a rank that `work` waits for ends, PeerLate after the deadline, CollectiveMismatch if ranks
        of this host are found to wait for each other, none of which can go on, and as `raise_failure`.
        """
        words = self.arena.words
        for look in self._looks:
            if look >= 0:
                os.sched_yield()
            for head in heads:
                if head.ready(words):
                    return
        self._sleep(work, heads, deadline)

    def _sleep(self, work: Pending, heads: Sequence[Pending], deadline: float) -> None:
        words = self.arena.words
        self._say_blocked(work, heads)
        try:
            while not any(head.ready(words) for head in heads):
                self._poll(work, heads)
                self.raise_failure()
                if time.monotonic() > deadline:
                    error = self._late(work)
                    self.before_late()
                    self.raise_failure()
                    raise error
                words[self._board + layout.IDLE_ROUNDS] += 1
                self._check_deadlock()
        finally:
            words[self._board + layout.BLOCKED] += 1

    def _say_blocked(self, work: Pending, heads: Sequence[Pending]) -> None:
        """Write to this rank's board the targets of `heads` and the label of `work`. An odd number in the
        board's word BLOCKED says that they are valid; a count of targets above MAX_TARGETS, that some are left out."""
        words, board = self.arena.words, self._board
        targets = [target for head in heads for target in head.targets]
        words[board + layout.TARGETS] = len(targets)
        for i, target in enumerate(targets[: layout.MAX_TARGETS]):
            start = board + layout.TARGETS + 1 + 3 * i
            words[start], words[start + 1], words[start + 2] = target
        self.arena.write_text(self.rank, layout.LABEL, str(work.label), layout.PAGE - layout.LABEL)
        fence()
        words[board + layout.BLOCKED] += 1
        self._suspicion = None

    def _poll(self, work: Pending, heads: Sequence[Pending]) -> None:
        """Sleep until the doorbell rings, a rank that is waited for ends, or SLEEP_MILLISECONDS are over. Raises
        PeerLost."""
        words = self.arena.words
        poll = select.poll()
        poll.register(self._doorbells[self.rank], select.POLLIN)
        missing = {rank for rank, word, value in work.targets if words[word] < value}
        for rank in missing:
            poll.register(self.processes[rank], select.POLLIN)
        words[self._sleeping[self.rank]] = 1
        fence()
        try:
            may_go_on = words[layout.ANY_FAILED] or any(head.ready(words) for head in heads)
            events = [] if may_go_on else poll.poll(SLEEP_MILLISECONDS)
        finally:
            words[self._sleeping[self.rank]] = 0
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._doorbells[self.rank])
        gone = {descriptor for descriptor, _ in events} - {self._doorbells[self.rank]}
        dead = [rank for rank in missing if self.processes[rank] in gone]
        if dead and not work.ready(words):
            self.raise_failure()
            raise self._lost(dead, work)

    def _lost(self, ranks: Sequence[int], work: Pending) -> PeerLost:
        lost = self._network.lost | {rank: self._network.lost.get(rank, "ended") for rank in sorted(ranks)}
        text = ", ".join(f"{self.names[rank]} {how}" for rank, how in lost.items())
        return PeerLost(f"{text}; rank {self.rank} waits for it in {work.label}", list(lost))

    def _late(self, work: Pending) -> PeerLate:
        words = self.arena.words
        ranks = sorted({rank for rank, word, value in work.targets if words[word] < value})
        names = ", ".join(f"{self.names[rank]}, {self._whereabouts(rank)}" for rank in ranks)
        return PeerLate(
            f"rank {self.rank} waited in {work.label}, longer than the time-out, for {names}; "
            "--distributed-timeout-minutes sets the time",
            ranks,
        )

    def _whereabouts(self, rank: int) -> str:
        if self.arena.words[Arena.board(rank) + layout.BLOCKED] % 2:
            return f"waiting in {self.arena.read_text(rank, layout.LABEL)}"
        return "on another host" if rank in self._network.peers else "in no collective"

    # Deadlock: all ranks that this one needs, directly or not, sleep and have checked twice since.

    def _check_deadlock(self) -> None:
        sleepers = self._everyone_needed()
        if sleepers is None or self._suspicion is None or sleepers.keys() != self._suspicion.keys():
            self._suspicion = sleepers
            return
        before = self._suspicion
        if any(sleepers[rank][0] != before[rank][0] for rank in sleepers):
            self._suspicion = sleepers
        elif all(sleepers[rank][1] >= before[rank][1] + 2 for rank in sleepers):
            text = "; ".join(f"rank {rank} waits in {self.arena.read_text(rank, layout.LABEL)}" for rank in sleepers)
            raise CollectiveMismatch(f"the ranks wait for each other and none can go on: {text}")

    def _everyone_needed(self) -> dict[int, tuple[int, int]] | None:
        """{rank: (how often it began or ended a sleep, how often it looked in vain during sleeps)} of all ranks that
        this one waits for, directly or through others, itself included; None if one of them does not sleep."""
        words = self.arena.words
        needed: dict[int, tuple[int, int]] = {}
        open_ranks = [self.rank]
        while open_ranks:
            rank = open_ranks.pop()
            if rank in needed:
                continue
            board = Arena.board(rank)
            blocked, count = words[board + layout.BLOCKED], words[board + layout.TARGETS]
            if blocked % 2 == 0 or count > layout.MAX_TARGETS:
                return None
            needed[rank] = blocked, words[board + layout.IDLE_ROUNDS]
            start = board + layout.TARGETS + 1
            targets = [tuple(words[start + 3 * i : start + 3 * i + 3]) for i in range(count)]
            open_ranks += [other for other, word, value in targets if words[word] < value]
        return dict(sorted(needed.items()))

    # Failure: when one rank fails, all end.

    def fail(self, error: BaseException) -> None:
        """Stop this rank's collectives for good and tell every rank why; the first reason stays."""
        if self.failure is not None:
            return
        if not isinstance(error, CollectiveError):
            text = f"{self.names[self.rank]} failed: {type(error).__name__}: {error}"
            error = PeerFailed(text, [self.rank])
        self.failure = error
        text = _record(error)
        self._store_failure(self.rank, text)
        for rank in self._doorbells:
            self.ring(rank)
        self._network.tell_failure(text)

    def _store_failure(self, rank: int, text: str) -> None:
        """Store the failure record `text` (JSON) of a rank in the shared memory, where the ranks of this host read it;
        if the rank is of another host, any rank of this host may call this."""
        self.arena.write_text(rank, layout.FAILURE, text, layout.PAGE)
        fence()
        self.arena.words[Arena.board(rank) + layout.FAILED] = 1
        self.arena.words[layout.ANY_FAILED] = 1

    def raise_failure(self) -> None:
        """Raise the error that stopped this rank, or that another rank told as its own; nothing if there is none."""
        if self.failure is None:
            if not self.arena.words[layout.ANY_FAILED]:
                return
            self.failure = self._failure_of_another()
        raise self.failure.again()

    def _failure_of_another(self) -> CollectiveError:
        boards = [Arena.board(rank) for rank in range(self.arena.world_size)]
        rank = next(rank for rank, board in enumerate(boards) if self.arena.words[board + layout.FAILED])
        record = json.loads(self.arena.read_text(rank, layout.FAILURE))
        kind = next(kind for kind in KINDS if kind.__name__ == record["kind"])
        return kind(record["text"], record["ranks"])

    def close(self) -> None:
        """Close the descriptors. From now on `raise_failure` raises the error that has stopped this rank, or, if none
        has, CollectiveError."""
        self.failure = self.failure or CollectiveError("this backend was closed")
        for descriptor in [*self._doorbells.values(), *self.processes.values()]:
            os.close(descriptor)


def _record(error: CollectiveError) -> str:
    """The record of an error as JSON: its kind, of KINDS, text and ranks, cut so that it fits into a page of the shared
    memory, whatever JSON makes of the text's characters."""
    kind = next(kind for kind in type(error).__mro__ if kind in KINDS)
    text, ranks = str(error), error.ranks[:NAMED_RANKS]
    while len(found := json.dumps({"kind": kind.__name__, "text": text, "ranks": ranks})) > layout.PAGE - 8:
        text = text[: len(text) * 3 // 4]  # 8 bytes of the page say the record's length
    return found


def _watch(pid: int) -> int:
    """A file descriptor that becomes readable when the process `pid` ends; readable at once if it has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        read_end, write_end = os.pipe()
        os.close(write_end)
        return read_end
