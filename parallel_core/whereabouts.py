"""The places at which the ranks of a job stand, as values, and the table that is made of them, as when a job hangs."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field

_LARGEST = 14_000
"""The largest answer of a rank in bytes: shared memory has room for so many."""


@dataclass(frozen=True)
class Standing:
    """A call of a collective or a transfer that a rank has issued and that is not complete; with HCCL, which does not
    say what is complete, the rank's last one. number: the call's, from 1; members: global ranks of the group; of a
    message between two ranks this one and the missing one; missing: members without which the call does not go on."""

    operation: str
    group: str
    number: int
    """Number of the call, from 1: among the group's collectives, or among this rank's messages to, or from, the same
    rank."""
    details: str
    """Shape, type, and the place of the call in the program."""
    members: tuple[int, ...]
    """Global ranks of the group; for a message between two ranks this one and, while it is missing, the other."""
    missing: tuple[int, ...] = ()
    """Members without which the call does not go on; empty with HCCL."""

    def __str__(self) -> str:
        came = [rank for rank in self.members if rank not in self.missing]
        return (
            f"{self.operation} of group {self.group}, call {self.number}: came {_ranks(came)}; "
            f"did not come {_ranks(self.missing)}; {self.details}"
        )


@dataclass(frozen=True)
class Whereabouts:
    """The place in the program at which one rank stands: part of the step, action of the schedule, layer, operator, ""
    where unknown. waits: whether it waits for other ranks, with HCCL False; standing: calls not complete, with HCCL the
    last one. stack: its innermost frames as text, the outermost of these first."""

    rank: int
    iteration: int = 0
    """Number of the iteration, from 1."""
    micro_batch: int = 0
    chunk: int = 0
    part: str = ""
    """The part of a step: names of functions under way below the training loop, as "outer > inner"."""
    action: str = ""
    """The action of the schedule, such as "forward 3.0" (micro-batch, chunk); empty outside of one."""
    layer: str = ""
    """Global name of the cell that runs, or of the parameter whose gradient is computed; empty where no frame tells."""
    operator: str = ""
    waits: bool = False
    """Whether the rank waits in a collective or a transfer for other ranks; False with HCCL."""
    standing: tuple[Standing, ...] = ()
    """Calls that are not complete, of those that follow one another the first; if the rank waits, beginning with the
    one that it waits for."""
    stack: tuple[str, ...] = field(default=(), compare=False)

    def packed(self) -> str:
        """The value as JSON. While that has more than 14,000 bytes (`_LARGEST`), the outermost frame of the stack is
        left out, and where no frame is left the last call of `standing`, if any."""
        values = asdict(self)
        frames, calls = values["stack"], values["standing"] = list(self.stack), list(values["standing"])
        while len(text := json.dumps(values).encode()) > _LARGEST and (frames or calls):
            frames.pop(0) if frames else calls.pop()
        return text.decode()

    @staticmethod
    def unpacked(text: str) -> "Whereabouts":
        """The value from a text that `packed` gave, without what that left out."""
        values = json.loads(text)
        standing = tuple(
            Standing(**one | {"members": tuple(one["members"]), "missing": tuple(one["missing"])})
            for one in values["standing"]
        )
        return Whereabouts(**values | {"standing": standing, "stack": tuple(values["stack"])})

    @property
    def place(self) -> str:
        """The place in a few words: action or part of the step, layer, operator; "start or end" if none is known."""
        return (
            ", ".join(word for word in (self.action or self.part, self.layer, self.operator) if word) or "start or end"
        )

    def lines(self) -> list[str]:
        """Lines that say where the rank stands: iteration and place, calls under way, stack."""
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
    """Lines of a table with a row for each of `world_size` ranks: those that answered (`found`), then those that did
    not. The ranks of `late` and those without an answer are marked "<-". Behind the table are lines of the calls in
    which ranks wait, one for each operation, name of a group, number and members, and one that names the ranks of
    `late`, if any."""
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
    """Ranks for which others wait, without those that answered that they wait themselves. A rank that gave no answer
    counts if another waits for it."""
    needed = {rank for one in found if one.waits for message in one.standing[:1] for rank in message.missing}
    return needed - {one.rank for one in found if one.waits}


def _messages(found: Sequence[Whereabouts]) -> list[str]:
    """A line for every call in which a rank waits: members that came, and those that did not."""
    missing: dict[tuple[str, str, int, tuple[int, ...]], tuple[Standing, set[int]]] = {}
    for one in found:
        for message in one.standing[: one.waits]:
            key = message.operation, message.group, message.number, message.members
            missing.setdefault(key, (message, set(message.members)))[1].discard(one.rank)
    return [
        f"{operation} of group {group}, call {number}: came {_ranks([r for r in message.members if r not in absent])}; "
        f"did not come {_ranks(sorted(absent))}"
        for (operation, group, number, _), (message, absent) in missing.items()
    ]
