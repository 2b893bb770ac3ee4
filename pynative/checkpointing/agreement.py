"""Agreements of all ranks: before a loaded weight is written, that every name and shape fits on all of them; while a
checkpoint is saved, that every rank has written its part."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from mindspore import Tensor

from parallel_core.findings import ConfigError, Finding, SaysAll
from pynative import parallel_state
from pynative.collectives import PeerLost


def agree(
    offered: Sequence[str], taken: Collection[str], problems: Sequence[str], source: str, *, all_used: bool = True
) -> list[str]:
    """The names that `source` offers and no rank takes. Raises ConfigError on every rank if any rank has a problem or,
    with `all_used`, if an offered name is taken by no rank.

    `offered` is the same list on all ranks. `taken` are the names that this rank's model has, `problems` the messages
    of this rank. `source` names in messages where the names come from. All ranks call this.
    """
    findings = [int(name in taken) for name in offered]
    findings.append(len(problems))
    counts = parallel_state.get_world_group().all_reduce(Tensor(np.array(findings, np.int32))).asnumpy()
    unused = [name for name, count in zip(offered, counts[:-1], strict=True) if count == 0]
    all_problems = [*problems, *(f"{name}: {source} has it, the model does not" for name in unused if all_used)]
    if not all_problems and counts[-1]:
        all_problems = ["another rank's part of the model does not fit; it says why"]
    if all_problems:
        with suppress(PeerLost):  # Ranks wait for one another, so that the rank at fault can report first.
            parallel_state.get_world_group().barrier()
        rule = "\n".join(("does not fit, nothing was loaded:", *all_problems))
        raise ConfigError([Finding("--load", source, rule)])
    return unused


_MOST_BYTES = 2000
"""The largest error message, in bytes, that a rank tells the others."""


class SaveFailed(RuntimeError, SaysAll):
    """A checkpoint could not be written; raised on all ranks, with the error message of a rank that failed."""


def on_all_ranks(path: Path, work: Callable[[], None]) -> None:
    """Do this rank's part of saving `path`. All ranks call this; raises `SaveFailed` on each if `work` raises OSError
    on any."""
    error = None
    try:
        work()
    except OSError as failed:
        error = failed
    all_succeeded(path, error)


def all_succeeded(path: Path, error: OSError | None) -> None:
    """Raise `SaveFailed` on all ranks if any rank gives an error; `error`: why this rank's part of saving `path`
    failed. All ranks call this."""
    world = parallel_state.get_world_group()
    (failed,) = highest(0 if error is None else world.rank + 1)
    if not failed:
        return
    words = np.frombuffer(str(error or "").encode()[:_MOST_BYTES].ljust(_MOST_BYTES), np.uint8).astype(np.int32)
    told = bytes(world.broadcast(Tensor(words), failed - 1).asnumpy().tolist()).decode(errors="ignore").strip()
    with suppress(PeerLost):  # no rank ends before all have received the message
        world.barrier()
    raise SaveFailed(f"{path} could not be saved: {error or f'rank {failed - 1}: {told}'}") from error


def highest(*own: int) -> list[int]:
    """A list whose i-th entry is the largest i-th number that any rank gives. All ranks call this with equally many
    int32 numbers."""
    world = parallel_state.get_world_group()
    return list(world.all_reduce(Tensor(np.array(own, np.int32)), op="max").asnumpy().tolist())
