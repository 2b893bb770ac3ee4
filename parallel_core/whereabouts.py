"""The places at which the ranks of a job stand, as values, and the table that is made of them when a job hangs."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field

_LARGEST = 14_000
"""The largest answer of a rank in bytes, for which shared memory has room."""


@dataclass(frozen=True)
class Standing:
    """A message that a rank has issued and that is not complete."""

    operation: str
    group: str
    number: int
    """Number of the call of its kind in this group, from 1."""
    details: str
    """Shape, type, and the place of the call."""
    members: tuple[int, ...]
    """Global ranks that take part."""
    missing: tuple[int, ...] = ()
    """Ranks without which it does not move on."""

    def __str__(self) -> str:
        came = [rank for rank in self.members if rank not in self.missing]
        return (
            f"{self.operation} of group {self.group}, call {self.number}: came {_ranks(came)}; "
            f"did not come {_ranks(self.missing)}; {self.details}"
        )


@dataclass(frozen=True)
class Whereabouts:
    """The place of one rank."""

    rank: int
    iteration: int = 0
    """The iteration, from 1."""
    micro_batch: int = 0
    chunk: int = 0
    part: str = ""
    """The part of a step: the function that training calls."""
    action: str = ""
    """The action of the schedule, such as "forward 3.0" (micro-batch, chunk); none outside of one."""
    layer: str = ""
    """Global name of the cell that runs, or of the parameter whose gradient is computed; none where no frame tells."""
    operator: str = ""
    waits: bool = False
    """Whether it waits in a collective for other ranks."""
    standing: tuple[Standing, ...] = ()
    """The call that it waits in first, if it waits."""
    stack: tuple[str, ...] = field(default=(), compare=False)

    def packed(self) -> str:
        """The answer as text; of a long stack the innermost frames."""
        frames = list(self.stack)
        while len(text := json.dumps(asdict(self) | {"stack": frames}).encode()) > _LARGEST and frames:
            frames.pop(0)
        return text.decode()

    @staticmethod
    def unpacked(text: str) -> "Whereabouts":
        """The value that `packed` gave."""
        values = json.loads(text)
        standing = tuple(
            Standing(**one | {"members": tuple(one["members"]), "missing": tuple(one["missing"])})
            for one in values["standing"]
        )
        return Whereabouts(**values | {"standing": standing, "stack": tuple(values["stack"])})

    @property
    def place(self) -> str:
        """The place in a few words: action or part of the step, layer, operator."""
        return (
            ", ".join(word for word in (self.action or self.part, self.layer, self.operator) if word) or "start or end"
        )

    def lines(self) -> list[str]:
        """All of it, for the rank's own log."""
        return [
            f"rank {self.rank} is in iteration {self.iteration}: {self.place}",
            *(
                f"  {'waits in' if self.waits and not number else 'has under way'} {one}"
                for number, one in enumerate(self.standing)
            ),
            *(f"  {line}" for frame in self.stack for line in frame.rstrip().splitlines()),
        ]


def _ranks(ranks: Collection[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"


def table(found: Sequence[Whereabouts], world_size: int) -> list[str]:
    """The ranks beside each other, those for which others wait marked; ranks without an answer are named."""
    awaited = late(found)
    rows = [("rank", "iteration", "at", "waits in")]
    for one in found:
        rows.append((_marked(one.rank, awaited), str(one.iteration), one.place, _wait(one)))
    rows += [
        (_marked(rank, {rank}), "?", "no answer: it has ended, or does not come back to Python", "?")
        for rank in sorted({*range(world_size)} - {one.rank for one in found})
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, *_messages(found), *([f"the others wait for rank {_ranks(sorted(awaited))}"] if awaited else [])]


def _marked(rank: int, awaited: Collection[int]) -> str:
    return f"{rank} <-" if rank in awaited else str(rank)


def _wait(one: Whereabouts) -> str:
    if not (one.waits and one.standing):
        return "-"
    message = one.standing[0]
    return f"{message.operation} of group {message.group} (call {message.number}) for {_ranks(message.missing)}"


def late(found: Sequence[Whereabouts]) -> set[int]:
    """Ranks that others wait for, and that wait for nobody themselves: where a hang begins."""
    needed = {rank for one in found if one.waits for message in one.standing[:1] for rank in message.missing}
    return needed - {one.rank for one in found if one.waits}


def _messages(found: Sequence[Whereabouts]) -> list[str]:
    """Every message that somebody waits in: members that came, and those that did not."""
    missing: dict[tuple[str, str, int], tuple[Standing, set[int]]] = {}
    for one in found:
        for message in one.standing[: one.waits]:
            key = message.operation, message.group, message.number
            missing.setdefault(key, (message, set(message.members)))[1].discard(one.rank)
    return [
        f"{operation} of group {group}, call {number}: came {_ranks([r for r in message.members if r not in absent])}; "
        f"did not come {_ranks(sorted(absent))}"
        for (operation, group, number), (message, absent) in missing.items()
    ]
