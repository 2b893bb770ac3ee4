"""Messages between ranks as values: what one rank sends by a collective."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

BYTES_SENT: dict[str, Callable[[int, int, int], int]] = {
    "all_reduce": lambda size, n, _: 2 * (n - 1) * size // n,
    "reduce_scatter": lambda size, n, _: (n - 1) * size // n,
    "all_gather": lambda size, n, _: (n - 1) * size,
    "broadcast": lambda size, n, is_source: (n - 1) * size if is_source else 0,
    "all_to_all": lambda size, n, _: size,
    "send": lambda size, n, _: size,
    "recv": lambda size, n, _: 0,
    "barrier": lambda size, n, _: 0,
}
"""Operation -> bytes that one rank sends by the algorithm of least traffic (a ring for all_reduce), from the bytes of
the rank's input, the group's size and whether the rank is the source. An all_to_all's input is what goes to
others."""


@dataclass(frozen=True)
class Message:
    """Equal calls of one collective or send (`operation`) by one rank; `calls` is their number. what: the place that
    launches them, a path in the model or a word such as "pipeline"; kind: that of the process group; bytes: those that
    the rank sends in one call; backward: whether they belong to the backward pass."""

    what: str
    """The place that launches it: a path in the model without layer numbers, such as "decoder.layers.mlp.linear_fc1",
    or "pipeline", "gradients", ..."""
    kind: str
    """The kind of process group, one of `topology.KINDS`, or "world"."""
    operation: str
    bytes: int
    """Bytes that the rank sends in one call."""
    backward: bool = False
    """Whether it belongs to the backward pass."""
    calls: int = 1

    def times(self, count: int) -> "Message":
        """The message with `count` times as many calls."""
        return replace(self, calls=self.calls * count)

    def within(self, module: str) -> "Message":
        """The message with `module` put before its path (`what`), or in the place of an empty one."""
        return replace(self, what=f"{module}.{self.what}" if self.what else module)


def message(
    kind: str, operation: str, size: int, members: int, what: str = "", backward: bool = False
) -> Iterator[Message]:
    """One call of a collective or send whose input on a rank has `size` bytes (of an all_to_all those for other ranks),
    in a group of `members` ranks; nothing in a group of one. kind: of the group. operation: its name, a key of
    `BYTES_SENT`; for "broadcast" it is the call of a receiver, which sends nothing. what, backward: as in `Message`,
    the place that launches it and whether that is in the backward pass."""
    if members > 1:
        yield Message(what, kind, operation, BYTES_SENT[operation](size, members, 0), backward)
