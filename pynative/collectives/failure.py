"""What a rank does when it must end early: the rank that failed shows its traceback, or a line that says all; the
others one line.

msrun looks once a second and kills every rank when one ended badly, so the order matters: the rank at fault prints,
tells the others, and stays while they report in their turn. A rank whose peer died without a word reports at once.
"""

import os
import sys
import time
import traceback
from types import TracebackType

from parallel_core.findings import SaysAll
from pynative.collectives.errors import CollectiveMismatch, PeerFailed, PeerLost
from pynative.collectives.interface import Backend

GRACE_SECONDS = 0.6
"""How long a rank leaves the word to the rank at fault, which stays for twice that."""
EXIT_CODE = 1


class EndTogether:
    """`with EndTogether(backend):` around a rank's work: an uncaught error ends all ranks, the cause shown first.

    The rank at fault prints its traceback, tells the others, and exits with 1. A rank that got PeerLost prints one
    line naming the rank that it lost and exits with 1. Leaving without an error closes the backend.
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
        elif not _is_orderly(error):
            end(self.backend, error)


def end(backend: Backend, error: BaseException) -> None:
    """Report `error` as `EndTogether` says and end the process, without waiting for threads or exit handlers."""
    if isinstance(error, PeerLost):
        if isinstance(error, PeerFailed):
            time.sleep(GRACE_SECONDS)
        print(f"rank {backend.rank} ends: {error}", file=sys.stderr, flush=True)
    else:
        sys.stdout.flush()
        text = "" if isinstance(error, SaysAll) else "".join(traceback.format_exception(error))
        print(f"rank {backend.rank} failed: {_in_a_line(error)}\n{text}", file=sys.stderr, end="", flush=True)
        backend.fail(error)
        time.sleep(2 * GRACE_SECONDS)
    os._exit(EXIT_CODE)


def _in_a_line(error: BaseException) -> str:
    """What went wrong, ahead of a traceback of many lines, if there is one."""
    if isinstance(error, SaysAll):
        return str(error)
    return traceback.format_exception_only(error)[-1].rstrip("\n")


def _is_orderly(error: BaseException) -> bool:
    """`sys.exit(0)` is no failure."""
    return isinstance(error, SystemExit) and error.code in (None, 0)
