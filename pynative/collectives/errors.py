"""Errors of collectives when the ranks of a job no longer agree, or are no longer all there."""

from collections.abc import Sequence


class CollectiveError(RuntimeError):
    """A job of several ranks cannot go on: after one of these, later operations between ranks on CPUs raise it again.

    `ranks` are global ranks that it is about, perhaps none.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()):
        super().__init__(message)
        self.ranks = tuple(ranks)

    def again(self) -> "CollectiveError":
        """A new error of the same class, text and ranks, to be raised once more."""
        return type(self)(str(self), self.ranks)


class CollectiveMismatch(CollectiveError):
    """Ranks called different things, wait for each other in a circle, or at the job's end have left a message that
    nobody received or an operation that nobody waited for; the text names the calls and their places in the program."""


class PeerLost(CollectiveError):
    """A rank of the job has ended, has failed, did not do its part in time, or cannot be reached."""


class PeerLate(PeerLost):
    """A rank did not start, or did not do its part in a call, within the time-out (`--distributed-timeout-minutes`)."""


class PeerFailed(PeerLost):
    """A rank stopped for an error that is no CollectiveError, and told the others its text."""
