"""Derive a schedule's sends and receives from what its stages compute."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from parallel_core.schedules.actions import (
    Action,
    Compute,
    Exchange,
    Ordered,
    Placement,
    Transfer,
    consumer,
    of_entry,
    producer,
)


def communicate(computes: Sequence[Sequence[Ordered]], placement: Placement | None = None) -> list[list[Action]]:
    """The schedule: each stage's computations, with an `Exchange` behind each tick in which something leaves or
    arrives.

    The stages are played in lock-step, every computation, or pair of such, one tick long. At the end of a tick each
    stage is between two computations; what was made in that tick is exchanged there, by its maker and by its receiver.
    So all stages go through the exchanges in one order, that of the ticks, and cannot wait for each other in a circle.
    What a stage hands over to itself is there at once.

    placement: of the chunks; None is one chunk on each stage. Raises AssertionError if stages wait for each other for
    ever.
    """
    lock_step = _LockStep(computes, placement or Placement(len(computes)))
    with _collector_paused():
        while lock_step.tick():
            pass
    return lock_step.actions


class _LockStep:
    """All stages, played one tick at a time; `actions` collects what each runs."""

    def __init__(self, computes: Sequence[Sequence[Ordered]], placement: Placement) -> None:
        self.actions: list[list[Action]] = [[] for _ in computes]
        self._placement = placement
        self._left = [list(reversed(own)) for own in computes]
        self._arrived: list[set[Compute]] = [set() for _ in computes]

    def tick(self) -> bool:
        """Run the next entry of every stage that has its input, then the exchanges; false if no stage had any left.
        Raises AssertionError if stages wait for each other for ever."""
        if not any(self._left):
            return False
        stages = len(self._left)
        sends: list[tuple[Transfer, ...]] = [()] * stages
        receives: list[tuple[Transfer, ...]] = [()] * stages
        computed = False
        for stage, left in enumerate(self._left):
            if not left:
                continue
            if not all(self._has_input(compute, stage) for compute in of_entry(left[-1])):
                continue
            entry = left.pop()
            computed = True
            self.actions[stage].append(entry)
            for made in of_entry(entry):
                target = consumer(made, stage, self._placement)
                if target is None:
                    continue
                needs, peer = target
                if peer == stage:
                    self._arrived[stage].add(needs)
                else:
                    sends[stage] += (Transfer(made, needs, peer),)
                    receives[peer] += (Transfer(made, needs, stage),)
        assert computed, f"each stage waits for another before {[left[-1:] for left in self._left]}"
        self._exchange(sends, receives)
        return True

    def _has_input(self, compute: Compute, stage: int) -> bool:
        return compute in self._arrived[stage] or producer(compute, stage, self._placement) is None

    def _exchange(self, sends: list[tuple[Transfer, ...]], receives: list[tuple[Transfer, ...]]) -> None:
        for stage, (outgoing, incoming) in enumerate(zip(sends, receives, strict=True)):
            if outgoing or incoming:
                self.actions[stage].append(Exchange(outgoing, incoming))
                for transfer in incoming:
                    self._arrived[stage].add(transfer.consumed)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause garbage collection within the block: it would find nothing and walk the growing schedule repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
