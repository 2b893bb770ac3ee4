"""Derive a schedule's sends and receives from what its stages compute."""

from collections.abc import Sequence

from parallel_core.schedules.actions import Action, Compute, Exchange, Forward, Transfer


def _source(action: Compute, stage: int, stages: int) -> int | None:
    """The stage whose result `action` needs, if another one's."""
    source = stage - 1 if isinstance(action, Forward) else stage + 1
    return source if 0 <= source < stages else None


def _destination(action: Compute, stage: int, stages: int) -> int | None:
    """The stage that needs the result of `action`, if any."""
    destination = stage + 1 if isinstance(action, Forward) else stage - 1
    return destination if 0 <= destination < stages else None


def _stage(computes: Sequence[Compute], stage: int, stages: int) -> list[Action]:
    actions: list[Action] = []
    outgoing: tuple[Transfer, ...] = ()
    for compute in computes:
        source = _source(compute, stage, stages)
        incoming = () if source is None else (Transfer(compute, source),)
        if outgoing or incoming:
            actions.append(Exchange(outgoing, incoming))
        actions.append(compute)
        destination = _destination(compute, stage, stages)
        outgoing = () if destination is None else (Transfer(compute, destination),)
    return actions + ([Exchange(outgoing)] if outgoing else [])


def communicate(schedule: Sequence[Sequence[Compute]]) -> list[list[Action]]:
    """The schedule with one `Exchange` where, between two computations, something leaves or arrives.

    The result of a computation is sent in the exchange that also receives the input of the next one: 1F1B's neighbours
    then meet in the same exchange, one sending forward and receiving backward, the other the reverse.
    """
    return [_stage(computes, stage, len(schedule)) for stage, computes in enumerate(schedule)]
