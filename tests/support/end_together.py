"""A rank's work of which an error ends all ranks of a job, for scripts without a training."""

from types import TracebackType

from pynative.collectives.errors import CollectiveMismatch, PeerLost
from pynative.collectives.failure import end
from pynative.collectives.interface import Backend


class EndTogether:
    """`with EndTogether(backend):` around a rank's work: an uncaught error ends all ranks, the cause shown first.

    Leaving without an error closes the backend; `sys.exit(0)` is none, and leaves it open.
    """

    def __init__(self, backend: Backend):
        self.backend = backend

    def __enter__(self) -> Backend:
        return self.backend

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self.backend.close()
            except (PeerLost, CollectiveMismatch) as late:
                end(self.backend, late)
        elif not (isinstance(error, SystemExit) and error.code in (None, 0)):
            end(self.backend, error)
