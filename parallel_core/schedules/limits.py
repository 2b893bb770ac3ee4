"""Which sizes a schedule can be built for."""

from collections.abc import Iterator
from typing import NamedTuple


class Given(NamedTuple):
    """How the user gave each size, flag and value, for the sentences that refuse it."""

    schedule: str
    stages: str
    micro_batches: str
    chunks: str
    group_size: str


def refusals(
    name: str, stages: int, micro_batches: int, chunks: int, group_size: int | None, given: Given
) -> Iterator[str]:
    """What does not go together, a sentence each."""
    if name == "interleaved":
        yield from _of_interleaved(stages, micro_batches, chunks, group_size, given)
    elif chunks > 1:
        yield f"{given.chunks}: needs the interleaved schedule, not {given.schedule}; change one of them"
    elif group_size is not None:
        yield f"{given.group_size}: needs virtual stages, of which there are none; leave it out"


def _of_interleaved(
    stages: int, micro_batches: int, chunks: int, group_size: int | None, given: Given
) -> Iterator[str]:
    """Megatron's rules: a group fills the pipeline, and so does what is left over of the last group."""
    rest = micro_batches % (group_size or stages)
    if chunks < 2:
        yield f"{given.schedule}: needs 2 or more virtual stages, not {given.chunks}; ask for some or use 1f1b"
    elif stages < 2:
        yield f"{given.chunks}: needs 2 or more stages, not {given.stages}; raise that or leave this out"
    elif group_size is None and rest:
        yield f"{given.micro_batches}: must be a multiple of {given.stages} for interleaving; change one of them"
    elif group_size is not None and not stages <= group_size <= micro_batches:
        yield (
            f"{given.group_size}: must be at least {given.stages} and at most the {micro_batches} micro-batches of "
            f"{given.micro_batches}; change it"
        )
    elif 0 < rest < stages:
        yield (
            f"{given.group_size}: leaves a last group of {rest} of the {micro_batches} micro-batches of "
            f"{given.micro_batches}, which must be none or at least {given.stages}; change one of them"
        )
