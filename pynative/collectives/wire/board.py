"""Questions and answers of a roll call, in the memory that the ranks of a host share and over the network."""

import time

from pynative.collectives.wire import arena as layout
from pynative.collectives.wire.arena import Arena
from pynative.collectives.wire.network import Network

SPACING_MILLISECONDS = 5_000
"""The least time between two questions: ranks whose waits end together ask once."""


class ArenaBoard:
    """The board of roll calls in shared memory. A roll call's number is the time of the asking host's clock in
    milliseconds."""

    def __init__(self, arena: Arena, network: Network) -> None:
        self.rank, self.world_size = arena.rank, arena.world_size
        self._arena, self._network = arena, network

    def asked(self) -> int:
        """The number of the last question; 0: there was none."""
        return int(self._arena.words[layout.ASKED])

    def ask(self) -> None:
        """Ask every rank where it stands, unless somebody asked within SPACING_MILLISECONDS (5 s)."""
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
        """The answers to question `number` that have come, in rank order."""
        ranks = range(self.world_size)
        came = [rank for rank in ranks if self._arena.words[Arena.board(rank) + layout.ANSWERED] == number]
        return [self._arena.read_text(rank, layout.ANSWER) for rank in came]

    def show(self, number: int) -> None:
        """Note, on rank 0, that it has shown the table of answers to question `number`, for `is_shown` on the host's
        other ranks."""
        self._arena.words[layout.SHOWN] = number

    def is_shown(self, number: int) -> bool:
        """Whether rank 0 has shown the table of question `number`; False on other hosts, which do not learn it."""
        return bool(self._arena.words[layout.SHOWN] == number)
