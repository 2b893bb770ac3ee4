"""Whether what the ranks posted to HCCL can complete: each group of a rank is a stream that keeps its order.

A stream starts an operation when the one before has ended, and HCCL's send ends only when it is received. So two ranks
that both post a send and then a receive, to each other, wait forever; our shared memory, which keeps what was sent,
does not show it. Messages of one batch (HcclBatchSendRecv) travel together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Message = tuple[str, int]
"""("send" or "recv", the peer's index in the group), or (a collective's name, -1)."""


@dataclass(frozen=True)
class Posted:
    """An operation that a rank posted: the global ranks of its group, and messages that travel together."""

    ranks: tuple[int, ...]
    messages: tuple[Message, ...]


class _Stream:
    """The operations that a rank has posted to a group and that are not done."""

    def __init__(self, posted: Sequence[Posted]) -> None:
        self.left = [list(each.messages) for each in posted]

    def head(self) -> list[Message]:
        """The messages of the operation under way that are not done."""
        return self.left[0] if self.left else []

    def done(self, message: Message) -> None:
        """Mark a message of the operation under way as done; the next operation starts when all of this one's are."""
        self.left[0].remove(message)
        if not self.left[0]:
            self.left.pop(0)


def check_order(by_rank: Sequence[Sequence[Posted]]) -> None:
    """Raise AssertionError naming a group whose streams stop before their end; `by_rank`: what each rank posted."""
    for ranks in sorted({posted.ranks for posts in by_rank for posted in posts}):
        streams = [_Stream([posted for posted in by_rank[rank] if posted.ranks == ranks]) for rank in ranks]
        while _advance(streams):
            continue
        stuck = {rank: stream.head() for rank, stream in zip(ranks, streams, strict=True) if stream.left}
        assert not stuck, f"group {ranks}: nothing moves while these are under way: {stuck}"


def _advance(streams: Sequence[_Stream]) -> bool:
    """Complete one message between two ranks or one collective of all; whether there was one."""
    heads = [stream.head() for stream in streams]
    if heads[0] and heads[0][0][1] < 0 and all(head == heads[0] for head in heads):
        for stream, head in zip(streams, heads, strict=True):
            stream.done(head[0])
        return True
    for rank, head in enumerate(heads):
        for kind, peer in head:
            if kind == "send" and ("recv", rank) in heads[peer]:
                streams[rank].done((kind, peer))
                streams[peer].done(("recv", rank))
                return True
    return False
