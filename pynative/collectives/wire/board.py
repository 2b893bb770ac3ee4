"""Questions and answers of a roll call, in the memory that the ranks of a host share and over the network."""

import time

from pynative.collectives.wire import arena as layout
from pynative.collectives.wire.arena import Arena
from pynative.collectives.wire.network import Network

SPACING_MILLISECONDS = 5_000
"""Milliseconds after a question in which hosts that know of it ask no other: waits that end together ask once."""


class ArenaBoard:
    """The board of roll calls in shared memory, and over the network for other hosts. A roll call's number is the time
    of the asking host's clock in milliseconds."""

    def __init__(self, arena: Arena, network: Network) -> None:
        self.rank, self.world_size = arena.rank, arena.world_size
        self._arena, self._network = arena, network

    def asked(self) -> int:
        """The number of the last question that reached this host; 0: there was none."""
        return int(self._arena.words[layout.ASKED])

    def ask(self) -> None:
        """Ask every rank where it stands, unless the last question that reached this host is at most 5 s away
        (SPACING_MILLISECONDS)."""
        now = int(time.time() * 1e3)
        if abs(now - self.asked()) > SPACING_MILLISECONDS:
            self._arena.words[layout.ASKED] = now
            self._network.ask(now)

    def answer(self, number: int, text: str) -> None:
        """Store this rank's answer for rank 0, and send it if rank 0 is on another host."""
        self._arena.put_answer(self.rank, number, text)
        if 0 in self._network.peers:
            self._network.answer(0, number, text)

    def answers(self, number: int) -> list[str]:
        """The answers that have come to this host from ranks whose last one is to question `number`; in rank order."""
        ranks = range(self.world_size)
        came = [rank for rank in ranks if self._arena.words[Arena.board(rank) + layout.ANSWERED] == number]
        return [self._arena.read_text(rank, layout.ANSWER) for rank in came]

    def show(self, number: int) -> None:
        """Note, on rank 0, that it has shown the table of answers to question `number`, for `is_shown` on its host."""
        self._arena.words[layout.SHOWN] = number

    def is_shown(self, number: int) -> bool:
        """Whether the last table that rank 0 has shown is that of question `number`; False on other hosts, which do not
        learn it."""
        return bool(self._arena.words[layout.SHOWN] == number)
