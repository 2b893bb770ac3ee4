"""What a collective costs: bytes that one rank sends, by the algorithm of least traffic (a ring for all_reduce)."""

from collections.abc import Callable

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
"""Operation -> bytes, from the bytes of the rank's input, the group's size and whether the rank is the source. Of an
all_to_all the input is what goes to others."""
