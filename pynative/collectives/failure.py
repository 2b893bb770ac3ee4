"""The end of a rank that must end early: a rank at fault prints its error and traceback, for a `SaysAll` error its text
alone; a rank that lost another (PeerLost) that error's text.

msrun looks once a second and kills every rank when one ended badly, so the order matters: the rank at fault prints,
tells the others, and stays so that they can report in their turn. A rank whose peer died without a word reports at
once.
"""

import os
import sys
import time
import traceback

from parallel_core.findings import SaysAll
from pynative.collectives.errors import PeerFailed, PeerLost
from pynative.collectives.interface import Backend

GRACE_SECONDS = 0.6
"""Seconds that a rank waits before it reports another rank's failure; the rank at fault stays for twice that."""
EXIT_CODE = 1


def end(backend: Backend, error: BaseException) -> None:
    """End the process with exit code 1, without waiting for threads or exit handlers.

    A rank whose error is no PeerLost is at fault: it prints the error and its traceback, for a `SaysAll` error the text
    alone, tells the others (HCCL cannot), and stays for 1.2 s, so that they can print. A rank whose error is PeerLost
    prints its text, if PeerFailed after 0.6 s.
    """
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
    """The error in one line: a `SaysAll` error's text, else the last line of its traceback."""
    if isinstance(error, SaysAll):
        return str(error)
    return traceback.format_exception_only(error)[-1].rstrip("\n")
