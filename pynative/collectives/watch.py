"""A thread that ends this rank when a peer dies while the main thread is inside MindSpore's communication.

mccl notices a dead peer only after 30 s, and says no more than that a receive failed. Elsewhere `waiting.py` sees it.
"""

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Iterator

GRACE_SECONDS = 2.0
"""A peer may also end because all is done: the call in progress then gets what it still has to get."""


class Watch:
    """Watches descriptors that say that a rank ended while a block `with watch.inside(label):` runs."""

    def __init__(self, rank: int, names: dict[int, str], processes: dict[int, int]):
        self._rank = rank
        self._names = {descriptor: names[peer] for peer, descriptor in processes.items()}
        self._poll = select.poll()
        for descriptor in processes.values():
            self._poll.register(descriptor, select.POLLIN)
        self._calls = 0
        self._label: object = None
        threading.Thread(target=self._run, daemon=True).start()

    @contextlib.contextmanager
    def inside(self, label: object) -> Iterator[None]:
        """The main thread is in a call into MindSpore, which `label` names."""
        self._calls += 1
        self._label = label
        try:
            yield
        finally:
            self._label = None

    def _run(self) -> None:
        ended = self._names[self._poll.poll()[0][0]]
        while True:
            call = self._calls
            time.sleep(GRACE_SECONDS)
            label = self._label
            if label is not None and call == self._calls:
                print(f"rank {self._rank} ends: {ended} ended during {label}", file=sys.stderr, flush=True)
                os._exit(1)
